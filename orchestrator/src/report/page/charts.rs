//! The plots of a page, with the figures that each plot shows.

use super::plot::{COLOURS, Form, Plot, Series};
use super::read::{Points, RunFigures};

/// Fates in the order of their colours.
const FATES: [&str; 8] =
    ["accepted", "filtered", "held", "carried", "requeued", "cancelled", "stale", "failed"];
/// Buckets of tokens that have the same colours in every run. Other buckets follow in the order of their
/// names.
const BUCKETS: [&str; 5] = ["accepted", "filtered", "held", "carried", "stale"];
/// The name of the series that sums all parts of a column without a colour.
const OTHERS: &str = "others";

/// All plots, in the order of the page.
pub(super) fn plots(figures: &RunFigures) -> Vec<(Plot, &Points)> {
    let steps = &figures.steps;
    let mut plots: Vec<(Plot, &Points)> = vec![
        (step_time(steps), steps),
        (sample_time(steps), steps),
        (throughput(steps), steps),
        (accept_rate(steps), steps),
        (fates(steps), steps),
        (rewards(steps), steps),
        (lengths(steps), steps),
        (bias(steps), steps),
        (tokens(steps), steps),
        (staleness(steps), steps),
    ];
    if !steps.names("filter_reasons").is_empty() {
        plots.insert(5, (filter_reasons(steps), steps));
    }
    if !figures.validations.is_empty() {
        plots.push((validation(&figures.validations), &figures.validations));
    }
    plots
}

fn plot(id: &'static str, title: &'static str, unit: &'static str, form: Form, series: Vec<Series>) -> Plot {
    Plot { id, title, unit, form, series, reference: None }
}

/// The series of the figure `name`.
fn named(points: &Points, name: &str, label: &str) -> Series {
    Series::new(label, points.means(name))
}

/// The series of the figure `name` of the object `part`, which is 0 where the object does not have the name.
fn within(points: &Points, part: &str, name: &str, label: &str) -> Series {
    Series::new(label, points.means_in(part, name))
}

fn step_time(steps: &Points) -> Plot {
    let held = [
        ("time.held_trainer_s", "held back by the trainer"),
        ("time.held_queue_s", "held back by the full queue"),
        ("time.held_reward_s", "held back by the reward"),
    ];
    let mut working = steps.means("time.step_s");
    for (name, _) in held {
        for (rest, held) in working.iter_mut().zip(steps.means(name)) {
            *rest = rest.map(|rest| (rest - held.unwrap_or(0.0)).max(0.0));
        }
    }
    let mut series = vec![
        Series::new("collecting groups", working),
        named(steps, "time.before_s", "waiting for the trainer before the step"),
        named(steps, "time.put_s", "putting rows after the step"),
    ];
    series.extend(held.map(|(name, label)| named(steps, name, label)));
    plot("step-time", "Time of a step", "seconds", Form::Columns, without_zeros(series))
}

fn sample_time(steps: &Points) -> Plot {
    let series = vec![
        named(steps, "sample_time.engine_s", "on the engine"),
        named(steps, "sample_time.permit_s", "waiting for a permit"),
        named(steps, "sample_time.reward_s", "being graded"),
    ];
    plot("sample-time", "Time of a sample", "mean of finished samples, seconds", Form::Columns, series)
}

fn throughput(steps: &Points) -> Plot {
    let series = vec![named(steps, "samples.tokens_per_s", "tokens/s")];
    plot("throughput", "Throughput", "response tokens of finished samples, per second", Form::Lines, series)
}

fn accept_rate(steps: &Points) -> Plot {
    let series = vec![named(steps, "groups.accept_rate", "accept rate")];
    plot(
        "accept-rate",
        "Accept rate",
        "accepted groups / (accepted and filtered groups)",
        Form::Lines,
        series,
    )
}

fn fates(steps: &Points) -> Plot {
    let series = FATES.map(|fate| named(steps, &format!("fates.{fate}"), fate));
    plot("fates", "Fates", "dispatches that ended", Form::Columns, series.into())
}

fn filter_reasons(steps: &Points) -> Plot {
    let series = parts(steps, "filter_reasons", &[]);
    plot("filter-reasons", "Filtered groups", "by reason", Form::Columns, series)
}

fn rewards(steps: &Points) -> Plot {
    let spread = steps.means("rewards.std");
    let series = vec![
        named(steps, "rewards.mean", "reward, with its standard deviation").with_interval(&spread),
        named(steps, "rewards.acc_mean", "accuracy"),
    ];
    plot("rewards", "Rewards", "mean of accepted samples", Form::Lines, series)
}

fn lengths(steps: &Points) -> Plot {
    let series = vec![
        named(steps, "lengths.p50", "median"),
        named(steps, "lengths.p90", "90th percentile"),
        named(steps, "lengths.max", "longest"),
    ];
    plot("lengths", "Response lengths", "accepted samples, tokens", Form::Lines, series)
}

/// The bias with an interval of two standard errors, where both are known.
fn bias(steps: &Points) -> Plot {
    let errors = steps.means("bias.length_error");
    let twice: Vec<Option<f64>> = errors.into_iter().map(|error| Some(2.0 * error?)).collect();
    let series = vec![named(steps, "bias.length", "length bias").with_interval(&twice)];
    let unit = "mean length of accepted / dispatched responses; 1 is unbiased";
    Plot { reference: Some(1.0), ..plot("bias", "Length bias", unit, Form::LinesInRange, series) }
}

fn tokens(steps: &Points) -> Plot {
    let series = parts(steps, "tokens", &BUCKETS);
    let unit =
        "response tokens by bucket at the step's end; those waiting for the next step count again in it";
    plot("tokens", "Tokens", unit, Form::Columns, series)
}

fn staleness(steps: &Points) -> Plot {
    let mut ages: Vec<u64> =
        steps.names("staleness").iter().filter_map(|age| age.parse::<u64>().ok()).collect();
    ages.sort_unstable();
    let series =
        ages.into_iter().map(|age| within(steps, "staleness", &age.to_string(), &format!("{age} behind")));
    let unit = "accepted groups by staleness, in versions";
    plot("staleness", "Staleness", unit, Form::Columns, folded(series.collect()))
}

fn validation(validations: &Points) -> Plot {
    let series = vec![
        named(validations, "best", "best: prompts with a right sample"),
        named(validations, "mean", "mean: right samples"),
    ];
    plot("validation", "Validation", "share", Form::Lines, series)
}

/// One series for each name below `part`: first the names in `order`, and then the others in the order of
/// their names.
fn parts(points: &Points, part: &str, order: &[&str]) -> Vec<Series> {
    let mut names = points.names(part);
    let rank = |name: &String| order.iter().position(|known| known == name).unwrap_or(order.len());
    names.sort_by_key(rank);
    let series = names.iter().map(|name| within(points, part, name, &name.replace('_', " ")));
    folded(without_zeros(series.collect()))
}

/// Removes series that are 0 everywhere. The first series is always kept.
fn without_zeros(series: Vec<Series>) -> Vec<Series> {
    let is_shown = |(number, series): &(usize, Series)| {
        *number == 0 || series.values.iter().flatten().any(|value| *value != 0.0)
    };
    series.into_iter().enumerate().filter(is_shown).map(|(_, series)| series).collect()
}

/// Merges all series that have no colour into one series, which is their sum and comes last.
fn folded(mut series: Vec<Series>) -> Vec<Series> {
    if series.len() <= COLOURS {
        return series;
    }
    let rest = series.split_off(COLOURS - 1);
    let points = rest.iter().map(|series| series.values.len()).max().unwrap_or(0);
    let sum = |point: usize| {
        let values = rest.iter().filter_map(|series| series.values.get(point).copied().flatten());
        values.reduce(|sum, value| sum + value)
    };
    series.push(Series::new(OTHERS, (0..points).map(sum).collect()));
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_without_a_colour_are_summed_up() {
        let series =
            (0..11).map(|number| Series::new(format!("{number}"), vec![Some(f64::from(number)), None]));
        let folded = folded(series.collect());
        assert_eq!(folded.len(), COLOURS);
        let others = &folded[COLOURS - 1];
        assert_eq!((others.label.as_str(), others.values.as_slice()), (OTHERS, &[Some(34.0), None][..]));
    }
}
