//! Pictures of a sweep: time, waste and bias of each setting, and the requests of a step by server.

use rolldock_simulate::front::front;

use super::{Outcome, Setting};
use crate::report::{Point, Scatter, timeline_svg};

/// The file of the picture of [`pareto`].
pub const PARETO_FILE: &str = "pareto.svg";

/// Step time, waste and bias of all settings. The points of settings on the Pareto front are filled.
pub fn pareto(results: &[(Setting, Outcome)]) -> String {
    let distance = |outcome: &Outcome| {
        let bias =
            |ratio: Option<rolldock_simulate::ratio::Ratio>| ratio.map(|ratio| (ratio.value - 1.0).abs());
        bias(outcome.length_bias).zip(bias(outcome.accuracy_bias)).map(|(one, other)| one.max(other))
    };
    let costs: Vec<[f64; 3]> = results
        .iter()
        .map(|(_, outcome)| [outcome.times.step_s, outcome.waste, distance(outcome).unwrap_or(f64::NAN)])
        .collect();
    let on_front = front(&costs);
    let points = |cost: usize| -> Vec<Point> {
        let point = |((setting, _), (costs, on_front)): (&(Setting, Outcome), (&[f64; 3], &bool))| Point {
            label: match setting.label() {
                label if label.is_empty() => "the recipe".to_owned(),
                label => label,
            },
            x: costs[0],
            y: 100.0 * costs[cost],
            is_filled: *on_front,
        };
        results.iter().zip(costs.iter().zip(&on_front)).map(point).collect()
    };
    let scatter = |title: &str, cost: usize| Scatter {
        title: title.to_owned(),
        x_unit: "seconds of a step".to_owned(),
        points: points(cost),
    };
    Scatter::svg(&[
        scatter("wasted tokens, % of all tokens", 1),
        scatter("bias, % (the larger of length and accuracy)", 2),
    ])
}

/// The requests of the last step of a setting by server, and the name of the file for this picture. `None` if
/// the step had no requests.
pub fn requests(number: usize, setting: &Setting, outcome: &Outcome) -> Option<(String, String)> {
    let timeline = outcome.requests.as_ref().filter(|timeline| !timeline.requests.is_empty())?;
    let name = format!("requests-{}.svg", number + 1);
    Some((name, timeline_svg(timeline, &setting.label())))
}
