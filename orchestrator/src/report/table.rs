//! The table at the end of a step.

use std::time::Duration;

use rolldock_dispatch::StepEnd;

use crate::dispatch::bias::{Bias, BiasReading};
use crate::process::{grouped, new_table, plural, share, token_words};
use crate::rollout::StepMetrics;

/// The maximum number of servers that are listed one by one. A larger fleet is summarised.
const SERVERS_LISTED_MAX: usize = 16;

fn per_sample(total: Duration, samples: u64) -> String {
    format!("{:.2} s", total.as_secs_f64() / samples.max(1) as f64)
}

fn ending(end: StepEnd) -> &'static str {
    match end {
        StepEnd::Reached => "target reached",
        StepEnd::OutOfBatches => "SHORT: every generation batch is used up (rollout.max_gen_batches)",
        StepEnd::OutOfPrompts => "SHORT: the data set has no more prompts",
        StepEnd::Interrupted => "interrupted",
    }
}

/// Formats the results of a step as a table for a terminal.
pub fn step_table(metrics: &StepMetrics) -> String {
    let mut table = new_table(vec![format!("step {}", metrics.step), ending(metrics.end).to_owned()]);
    let always = [
        ("time", time(metrics)),
        ("groups", groups(metrics)),
        ("filtered", filtered(metrics)),
        ("other fates", other_fates(metrics)),
        ("tokens", token_words(&metrics.tokens)),
        ("samples", samples(metrics)),
        ("time a sample", time_of_a_sample(metrics)),
        ("length bias", length_bias(&metrics.bias)),
    ];
    let sometimes = [
        ("difficulty", difficulty(&metrics.bias)),
        ("bias guard", bias_guard(metrics)),
        ("policy", policy(metrics)),
    ];
    for (name, text) in always {
        table.add_row(vec![name.to_owned(), text]);
    }
    for (name, text) in sometimes {
        if let Some(text) = text {
            table.add_row(vec![name.to_owned(), text]);
        }
    }
    table.add_row(vec!["servers".to_owned(), server_lines(metrics)]);
    table.to_string()
}

fn time(metrics: &StepMetrics) -> String {
    let seconds = metrics.elapsed.as_secs_f64();
    let rate = metrics.costs.tokens as f64 / seconds.max(1e-9);
    format!("{seconds:.2} s, {} tokens/s", grouped(rate as u64))
}

fn groups(metrics: &StepMetrics) -> String {
    format!(
        "{} accepted of {} wanted, {} dispatched, {}",
        metrics.totals.accepted,
        metrics.counts.target,
        metrics.totals.dispatched,
        plural(metrics.counts.batches_opened as u64, "generation batch")
    )
}

fn filtered(metrics: &StepMetrics) -> String {
    let by_reason = &metrics.totals.filtered_by_reason;
    let reasons: Vec<String> = by_reason.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    format!("{} ({})", metrics.totals.filtered, or_dash(&reasons.join(", ")))
}

fn other_fates(metrics: &StepMetrics) -> String {
    let totals = &metrics.totals;
    format!(
        "{} held, {} requeued, {} carried, {} cancelled, {} stale, {} failed",
        totals.held, totals.requeued, totals.carried, totals.cancelled, totals.stale, totals.failed
    )
}

fn samples(metrics: &StepMetrics) -> String {
    let costs = &metrics.costs;
    format!(
        "{} finished, {} truncated, {} cancelled, {} new attempts, {} replays",
        grouped(costs.samples),
        share(costs.truncated, costs.samples),
        grouped(costs.samples_cancelled),
        costs.attempts_extra,
        costs.replays
    )
}

fn time_of_a_sample(metrics: &StepMetrics) -> String {
    let costs = &metrics.costs;
    format!(
        "permit {}, engine {}, reward {}",
        per_sample(costs.spent.permit, costs.samples),
        per_sample(costs.spent.engine, costs.samples),
        per_sample(costs.spent.reward, costs.samples)
    )
}

fn ratio(bias: &Bias) -> String {
    format!("{:.2} ± {:.2}", bias.ratio(), bias.standard_error)
}

fn length_bias(reading: &BiasReading) -> String {
    let Some(bias) = &reading.length else {
        return reading.unknown.map_or_else(|| "-".to_owned(), |unknown| unknown.to_string());
    };
    let (accepted, dispatched) = (bias.accepted, bias.dispatched);
    format!("{} (accepted {accepted:.0} / dispatched {dispatched:.0} tokens)", ratio(bias))
}

/// The bias in difficulty. Easy prompts have more right samples than hard prompts, and pass the filter at a
/// different rate.
fn difficulty(reading: &BiasReading) -> Option<String> {
    let figure = |name: &str, bias: &Option<Bias>| {
        let bias = bias.as_ref()?;
        Some(format!("{name} {} ({:.2} / {:.2})", ratio(bias), bias.accepted, bias.dispatched))
    };
    let figures = [figure("accuracy", &reading.accuracy), figure("accept rate", &reading.accept_rate)];
    let known: Vec<String> = figures.into_iter().flatten().collect();
    (!known.is_empty()).then(|| known.join(", "))
}

fn bias_guard(metrics: &StepMetrics) -> Option<String> {
    let early_stop = metrics.guarded?;
    Some(format!("accepted answers were too short: early_stop = \"{early_stop}\" from here on"))
}

fn policy(metrics: &StepMetrics) -> Option<String> {
    if metrics.policy_version == 0 {
        return None;
    }
    let ages: Vec<String> =
        metrics.ages.iter().map(|(age, groups)| format!("{groups} of age {age}")).collect();
    Some(format!("version {}; groups when claimed: {}", metrics.policy_version, or_dash(&ages.join(", "))))
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

fn server_lines(metrics: &StepMetrics) -> String {
    let servers = &metrics.costs.servers;
    if servers.len() > SERVERS_LISTED_MAX {
        let tokens = || servers.values().map(|load| load.tokens);
        return format!(
            "{} servers, {} to {} tokens each",
            servers.len(),
            grouped(tokens().min().unwrap_or(0)),
            grouped(tokens().max().unwrap_or(0))
        );
    }
    let lines: Vec<String> = servers
        .iter()
        .map(|(name, load)| {
            format!(
                "{name}: {} samples, {} tokens, {} cancelled, {} failures",
                load.samples,
                grouped(load.tokens),
                load.cancelled,
                load.failures
            )
        })
        .collect();
    or_dash(&lines.join("\n")).to_owned()
}

/// One line for a validation: the mean accuracy over all samples, and the share of prompts that have a right
/// sample.
pub fn validation_line(step: u64, samples_per_prompt: u32, accs: &[Vec<f32>]) -> String {
    let samples: Vec<f32> = accs.iter().flatten().copied().collect();
    let mean = samples.iter().sum::<f32>() / samples.len().max(1) as f32;
    let solved = accs.iter().filter(|group| group.iter().any(|acc| *acc > 0.0)).count();
    format!(
        "validation after step {step}: {} prompts, mean@{samples_per_prompt} {mean:.3}, best@{samples_per_prompt} {:.3}",
        accs.len(),
        solved as f32 / accs.len().max(1) as f32
    )
}

#[cfg(test)]
mod tests;
