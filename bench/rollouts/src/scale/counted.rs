//! The instructions of a sample, counted by valgrind.
//!
//! The CPU time of a sample grows with the number of samples for two reasons: the rollout does more for each
//! sample, or its data are in slower memory. The number of instructions shows the first reason alone. It is also
//! nearly the same in each run and on each machine.
//!
//! valgrind runs this program's hidden command `counted`, once with few samples and once with more. The difference
//! between the two counts, divided by the difference between the numbers of samples, has no part of the program's start.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::{CURVE, Fleet, Point, SAMPLES_PER_GROUP, engines_alone, in_virtual_time, rollout};

/// Minimum number of samples of the shorter run; the longer run has three times as many.
const SAMPLES_MIN: usize = 10_000;

/// The instructions of a sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct Instructions {
    /// Those of the servers alone.
    pub(super) servers: f64,
    /// Those of the rollout.
    pub(super) beyond: f64,
}

/// A run whose instructions are counted, in a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedRun {
    /// The index of the point on the curve.
    pub point: usize,
    /// Number of groups.
    pub groups: usize,
    /// Whether the rollout sends the requests. If not, they are sent directly to the servers.
    pub with_rollout: bool,
}

impl CountedRun {
    /// Runs to the end.
    pub fn run(self) -> anyhow::Result<()> {
        let point = *CURVE.get(self.point).context("expected the index of a point of the curve")?;
        if self.with_rollout {
            in_virtual_time(rollout(point, Fleet::Timed, self.groups))?;
        } else {
            in_virtual_time(engines_alone(point, Fleet::Timed, self.groups))?;
        }
        Ok(())
    }

    /// The instructions of a process that makes this run.
    fn count(self, program: &Path) -> anyhow::Result<f64> {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
        valgrind.arg(program).args(["counted", &self.point.to_string(), &self.groups.to_string()]);
        valgrind.args(self.with_rollout.then_some("--with-rollout"));
        let output = valgrind.output().context("cannot start valgrind")?;
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "valgrind has failed ({}): {said}", output.status);
        refs(&said).with_context(|| format!("expected a count of instructions, valgrind said: {said}"))
    }
}

/// The count in the line `I refs: 1,234,567` of cachegrind.
fn refs(said: &str) -> Option<f64> {
    let line =
        said.lines().find_map(|line| line.split_once("refs:").filter(|(name, _)| name.contains('I')))?;
    line.1.trim().replace(',', "").parse().ok()
}

/// The instructions of a sample at each point of the curve; `None` if valgrind is not installed.
pub(super) fn measure() -> anyhow::Result<Option<Vec<Instructions>>> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return Ok(None);
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let points = CURVE.iter().enumerate();
    points.map(|(index, point)| at(index, *point, &program)).collect::<anyhow::Result<_>>().map(Some)
}

fn at(index: usize, point: Point, program: &Path) -> anyhow::Result<Instructions> {
    let turn = point.running() / SAMPLES_PER_GROUP;
    let turns = SAMPLES_MIN.div_ceil(point.running());
    let of_sample = |with_rollout| {
        let count = |turns| CountedRun { point: index, groups: turns * turn, with_rollout }.count(program);
        let more = count(3 * turns)? - count(turns)?;
        anyhow::Ok(more / (2 * turns * point.running()) as f64)
    };
    let servers = of_sample(false)?;
    Ok(Instructions { servers, beyond: of_sample(true)? - servers })
}
