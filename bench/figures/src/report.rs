//! Figures, their bars, and the report that shows both.

use std::path::Path;

use anyhow::Context;
use comfy_table::{Table, presets};
use serde::Serialize;

/// The condition that a figure must meet for the run to succeed.
#[derive(Debug, Clone, Copy)]
pub enum Bar {
    /// `ours` is at most this.
    AtMost(f64),
    /// `ours` is at least this.
    AtLeast(f64),
    /// `ours` is from the first to the second value.
    Within(f64, f64),
    /// `ours / peer` is at most this.
    RatioAtMost(f64),
    /// `ours / peer` is at least this.
    RatioAtLeast(f64),
}

impl Bar {
    fn words(self) -> String {
        match self {
            Self::AtMost(most) => format!("at most {most}"),
            Self::AtLeast(least) => format!("at least {least}"),
            Self::Within(least, most) => format!("{least} to {most}"),
            Self::RatioAtMost(most) => format!("ratio at most {most}"),
            Self::RatioAtLeast(least) => format!("ratio at least {least}"),
        }
    }

    fn holds(self, ours: f64, ratio: Option<f64>) -> bool {
        match self {
            Self::AtMost(most) => ours <= most,
            Self::AtLeast(least) => ours >= least,
            Self::Within(least, most) => (least..=most).contains(&ours),
            // A bar on a ratio that was not measured does not hold.
            Self::RatioAtMost(most) => ratio.is_some_and(|ratio| ratio <= most),
            Self::RatioAtLeast(least) => ratio.is_some_and(|ratio| ratio >= least),
        }
    }
}

/// One measured figure.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    figure: String,
    ours: f64,
    /// The value that `ours` is compared with. It was measured or computed in the same run.
    peer: Option<f64>,
    unit: String,
    /// The ratio `ours / peer`.
    ratio: Option<f64>,
    bar: Option<String>,
    holds: Option<bool>,
}

impl Figure {
    /// A figure without a peer.
    pub fn new(figure: impl Into<String>, ours: f64, unit: &str) -> Self {
        let unit = unit.to_owned();
        Self { figure: figure.into(), ours, peer: None, unit, ratio: None, bar: None, holds: None }
    }

    /// Compares the figure with one in the same unit.
    pub fn against(self, peer: f64) -> Self {
        Self { peer: Some(peer), ratio: Some(self.ours / peer), ..self }
    }

    /// Compares the figure with that of a peer, and adds the peer's name to the name of the figure.
    pub fn against_named(self, name: &str, peer: f64) -> Self {
        let figure = format!("{} (peer: {name})", self.figure);
        Self { figure, ..self }.against(peer)
    }

    /// Sets the figure's bar. This must be called after [`Figure::against`].
    pub fn bar(self, bar: Bar) -> Self {
        let holds = bar.holds(self.ours, self.ratio);
        Self { bar: Some(bar.words()), holds: Some(holds), ..self }
    }
}

/// All figures of a run, as they are printed and written.
#[derive(Debug, Serialize)]
pub struct Report {
    machine: String,
    figures: Vec<Figure>,
}

impl Report {
    /// A report of these figures, with the name of this machine's processor.
    pub fn new(figures: Vec<Figure>) -> Self {
        Self { machine: machine(), figures }
    }

    /// Whether every bar holds.
    pub fn holds(&self) -> bool {
        self.figures.iter().all(|figure| figure.holds != Some(false))
    }

    /// The figures as a Markdown table.
    pub fn markdown(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["figure", "ours", "peer", "unit", "ratio", "bar", "holds"]);
        for figure in &self.figures {
            table.add_row([
                figure.figure.clone(),
                short(figure.ours),
                figure.peer.map_or_else(String::new, short),
                figure.unit.clone(),
                figure.ratio.map_or_else(String::new, short),
                figure.bar.clone().unwrap_or_default(),
                figure.holds.map_or("", |holds| if holds { "yes" } else { "NO" }).to_owned(),
            ]);
        }
        format!("{}\n\n{table}", self.machine)
    }

    /// Writes the report as JSON. The error names the file.
    pub fn write(&self, file: &Path) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(self)?;
        std::fs::write(file, json).with_context(|| format!("cannot write {}", file.display()))
    }
}

/// Formats a number: with three decimals below 1, with three significant digits from 1 to 100, and without
/// decimals above.
fn short(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude {
        _ if magnitude >= 100.0 => format!("{value:.0}"),
        _ if magnitude >= 10.0 => format!("{value:.1}"),
        _ if magnitude >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!("{}, {cpus} cores", model.map_or(std::env::consts::ARCH, |(_, name)| name))
}

#[cfg(test)]
mod tests {
    use super::{Bar, Figure, Report};

    #[test]
    fn a_figure_outside_its_bar_fails_the_report() {
        let held = Figure::new("held", 1.0, "s").against(2.0).bar(Bar::RatioAtMost(0.5));
        let unmeasured = Figure::new("unmeasured", 1.0, "s").bar(Bar::RatioAtLeast(0.1));
        assert!(Report::new(vec![held.clone(), Figure::new("without", 9.0, "s")]).holds());
        assert!(!Report::new(vec![held.clone(), unmeasured]).holds());
        assert!(!Report::new(vec![held, Figure::new("over", 9.0, "s").bar(Bar::AtMost(8.9))]).holds());
    }

    #[test]
    fn the_table_is_markdown() {
        let report = Report::new(vec![Figure::new("x", 0.5, "s").bar(Bar::Within(0.0, 1.0))]);
        assert!(report.markdown().lines().any(|line| line.starts_with('|') && line.contains("yes")));
    }
}
