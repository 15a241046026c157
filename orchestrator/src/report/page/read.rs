//! Reads the figures of a run, and keeps the bounded number of points that a page shows.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde_json::Value;

use super::PageError;

/// Maximum number of points of a plot. In a longer run each point is the mean of several steps.
const POINTS_MAX: usize = 400;
/// Number of slowest groups that are kept.
const SLOWEST: usize = 12;
/// The number of newest steps whose lines are kept.
const NEWEST: usize = 50;
/// The buckets of tokens that are not final: tokens in them at the end of a step count again in the next step.
const OPEN_BUCKETS: [&str; 3] = ["in_flight", "held", "carried"];
/// Fields of a line that are not measurements, or that have an entry for each server.
const NO_POINTS: [&str; 5] = ["format", "step", "life", "ended_unix_s", "servers"];

/// A point of a plot: one or more consecutive steps.
#[derive(Debug, Default)]
struct Point {
    first: u64,
    last: u64,
    /// For each name, the sum and the number of its values.
    sums: BTreeMap<String, (f64, u64)>,
}

impl Point {
    fn join(&mut self, other: Self) {
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        for (name, (sum, count)) in other.sums {
            let joined = self.sums.entry(name).or_default();
            joined.0 += sum;
            joined.1 += count;
        }
    }
}

/// The numbers of a file of figures, by their names in the file, such as `time.step_s`.
#[derive(Debug)]
pub(super) struct Points {
    /// The number of steps in a point.
    pub(super) steps_each: u64,
    points: BTreeMap<u64, Point>,
}

impl Points {
    fn new() -> Self {
        Self { steps_each: 1, points: BTreeMap::new() }
    }

    fn add(&mut self, step: u64, line: &Value) {
        let mut point = Point { first: step, last: step, sums: BTreeMap::new() };
        for (name, value) in line.as_object().into_iter().flatten() {
            if !NO_POINTS.contains(&name.as_str()) {
                gather(name.clone(), value, &mut point.sums);
            }
        }
        insert(&mut self.points, step / self.steps_each, point);
        if self.points.len() > POINTS_MAX {
            self.steps_each *= 2;
            for (place, point) in std::mem::take(&mut self.points) {
                insert(&mut self.points, place / 2, point);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// The steps of each point, as text.
    pub(super) fn labels(&self) -> Vec<String> {
        let label = |point: &Point| match point.first == point.last {
            true => format!("{}", point.first),
            false => format!("{} to {}", point.first, point.last),
        };
        self.points.values().map(label).collect()
    }

    /// The mean of the figure `name` in each point. It is `None` if no step of the point has the figure.
    pub(super) fn means(&self, name: &str) -> Vec<Option<f64>> {
        let mean = |point: &Point| point.sums.get(name).map(|(sum, count)| sum / *count as f64);
        self.points.values().map(mean).collect()
    }

    /// The mean of the figure `part.name` in each point, over the steps that have the object `part`. A step whose
    /// object does not have the name counts as 0.
    pub(super) fn means_in(&self, part: &str, name: &str) -> Vec<Option<f64>> {
        let whole = format!("{part}.{name}");
        let mean = |point: &Point| {
            let (_, steps) = point.sums.get(part)?;
            let sum = point.sums.get(&whole).map_or(0.0, |(sum, _)| *sum);
            Some(sum / *steps as f64)
        };
        self.points.values().map(mean).collect()
    }

    /// The sum of the figure `name` over all steps.
    pub(super) fn sum(&self, name: &str) -> f64 {
        self.points.values().filter_map(|point| point.sums.get(name)).map(|(sum, _)| sum).sum()
    }

    /// All names of the form `part.NAME`, without `part.`, in order.
    pub(super) fn names(&self, part: &str) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for point in self.points.values() {
            let inner = point.sums.keys().filter_map(|name| name.strip_prefix(part)?.strip_prefix('.'));
            names.extend(inner.map(str::to_owned));
        }
        names.sort_unstable();
        names.dedup();
        names
    }
}

fn insert(points: &mut BTreeMap<u64, Point>, place: u64, point: Point) {
    match points.get_mut(&place) {
        Some(there) => there.join(point),
        None => {
            points.insert(place, point);
        }
    }
}

/// Adds all numbers at `name` and below to `sums`. An object counts as 0 under its own name.
fn gather(name: String, value: &Value, sums: &mut BTreeMap<String, (f64, u64)>) {
    match value {
        Value::Number(number) => {
            sums.insert(name, (number.as_f64().unwrap_or_default(), 1));
        }
        Value::Object(inner) => {
            sums.insert(name.clone(), (0.0, 1));
            for (part, value) in inner {
                gather(format!("{name}.{part}"), value, sums);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) => {}
    }
}

/// A slow group, from the list of its step.
#[derive(Debug)]
pub(super) struct SlowGroup {
    pub(super) step: u64,
    pub(super) seconds: f64,
    pub(super) group: Value,
}

/// The figures in a run's directory.
#[derive(Debug)]
pub(super) struct RunFigures {
    pub(super) steps: Points,
    pub(super) validations: Points,
    /// The slowest groups of the run, the slowest one first.
    pub(super) slowest: Vec<SlowGroup>,
    /// The sums over all steps for each server, by name: samples, tokens, cut-off samples and failures.
    pub(super) servers: BTreeMap<String, [f64; 4]>,
    /// The newest lines, in the order of the file.
    pub(super) newest: VecDeque<Value>,
    /// Number of steps.
    pub(super) count: u64,
    /// Tokens that were in flight, held or carried at the end of the last step whose tokens are known.
    open_tokens: f64,
    /// Number of the last process that ended a step, from 1.
    pub(super) lives: u64,
    /// Number of steps whose figures are made from the ledger alone.
    pub(super) recovered: u64,
}

/// The names of [`RunFigures::servers`], in order.
const LOAD: [&str; 4] = ["samples", "tokens", "cut_off", "failures"];

impl RunFigures {
    /// Reads the lines of steps and validations. A last line without a line end is still being written, and
    /// is left out.
    pub(super) fn read(steps: &Path, validations: &Path) -> Result<Self, PageError> {
        let mut figures = Self {
            steps: Points::new(),
            validations: Points::new(),
            slowest: Vec::new(),
            servers: BTreeMap::new(),
            newest: VecDeque::new(),
            count: 0,
            open_tokens: 0.0,
            lives: 1,
            recovered: 0,
        };
        if !each_line(steps, |step, line| figures.add_step(step, line))? || figures.count == 0 {
            return Err(PageError::NoSteps { file: steps.to_owned() });
        }
        let measured = &mut figures.validations;
        each_line(validations, |step, line| measured.add(step, &line))?;
        Ok(figures)
    }

    /// Response tokens that were generated in the steps, as far as the lines have them.
    ///
    /// Held and carried tokens, and tokens in flight, are in the buckets of each step at whose end they wait. So
    /// only their last counts belong to the sum. The other buckets are final: each token is in one of them once.
    pub(super) fn generated_tokens(&self) -> f64 {
        let names = self.steps.names("tokens");
        let is_final = |name: &&String| !OPEN_BUCKETS.contains(&name.as_str());
        let settled = names.iter().filter(is_final).map(|name| self.steps.sum(&format!("tokens.{name}")));
        settled.sum::<f64>() + self.open_tokens
    }

    fn add_step(&mut self, step: u64, line: Value) {
        self.steps.add(step, &line);
        if let Some(tokens) = line["tokens"].as_object() {
            let open = OPEN_BUCKETS.iter().filter_map(|name| tokens.get(*name)?.as_f64());
            self.open_tokens = open.sum();
        }
        self.lives = self.lives.max(line["life"].as_u64().unwrap_or(1));
        self.recovered += u64::from(line["recovered"] == true);
        for group in line["slowest"].as_array().into_iter().flatten() {
            let seconds = group["seconds"].as_f64().unwrap_or_default();
            self.slowest.push(SlowGroup { step, seconds, group: group.clone() });
        }
        self.slowest.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        self.slowest.truncate(SLOWEST);
        for (name, load) in line["servers"].as_object().into_iter().flatten() {
            let sums = self.servers.entry(name.clone()).or_default();
            for (sum, key) in sums.iter_mut().zip(LOAD) {
                *sum += load[key].as_f64().unwrap_or_default();
            }
        }
        self.newest.push_back(line);
        if self.newest.len() > NEWEST {
            self.newest.pop_front();
        }
        self.count += 1;
    }
}

/// Calls `each` with the step and the value of every line. Returns whether the file exists.
fn each_line(path: &Path, mut each: impl FnMut(u64, Value)) -> Result<bool, PageError> {
    let unreadable = |source| PageError::Unreadable { file: path.to_owned(), source };
    let mut reader = match File::open(path) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(unreadable(error)),
    };
    let mut text = Vec::new();
    for number in 1.. {
        text.clear();
        if reader.read_until(b'\n', &mut text).map_err(unreadable)? == 0 || !text.ends_with(b"\n") {
            break;
        }
        let parsed = serde_json::from_slice::<Value>(&text).ok();
        let line = parsed.and_then(|line| Some((line["step"].as_u64()?, line)));
        let (step, line) = line.ok_or_else(|| PageError::Damaged { file: path.to_owned(), line: number })?;
        each(step, line);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_run_has_a_bounded_number_of_points_and_its_true_means() {
        let mut points = Points::new();
        for step in 1..=10_000_u64 {
            points.add(step, &json!({ "step": step, "time": { "step_s": step } }));
        }
        assert_eq!(points.steps_each, 32);
        let means = points.means("time.step_s");
        assert_eq!(means.len(), 10_000 / 32 + 1);
        // There is no step 0, so the first point has the steps 1 to 31.
        assert_eq!((points.labels()[0].as_str(), means[0]), ("1 to 31", Some(16.0)));
        assert_eq!((points.labels()[1].as_str(), means[1]), ("32 to 63", Some(47.5)));
        assert_eq!(points.sum("time.step_s"), 50_005_000.0);
    }

    #[test]
    fn a_step_without_a_value_leaves_a_gap() {
        let mut points = Points::new();
        points.add(
            2,
            &json!({ "tokens": { "accepted": 5, "stale": 1 }, "slowest": [1], "servers": { "a": 1 } }),
        );
        points.add(1, &json!({ "tokens": null }));
        assert_eq!(points.labels(), ["1", "2"]);
        assert_eq!(points.means("tokens.accepted"), [None, Some(5.0)]);
        assert_eq!(points.names("tokens"), ["accepted", "stale"]);
        assert!(points.names("servers").is_empty() && points.names("slowest").is_empty());
    }

    #[test]
    fn a_name_that_an_object_lacks_counts_as_0_in_the_mean_of_a_point() {
        let mut points = Points::new();
        for step in 0..=POINTS_MAX as u64 {
            let reasons = if step == 0 { json!({ "all_right": 5 }) } else { json!({}) };
            points.add(step, &json!({ "filter_reasons": reasons, "staleness": null }));
        }
        let means = points.means_in("filter_reasons", "all_right");
        assert_eq!((points.steps_each, means[0], means[1]), (2, Some(2.5), Some(0.0)));
        assert_eq!(points.means_in("staleness", "1")[0], None);
    }
}
