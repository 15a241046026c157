//! Plots as inline SVG: lines with points, and stacked columns, over steps.

use std::fmt::Write;

/// Size of a plot, and the margins around its area, in units of its view box.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 26.0;
/// The approximate number of labels of the horizontal axis.
const LABELS: usize = 8;
/// The maximum number of points of a plot for which the points are drawn in full size.
const LARGE_POINTS_MAX: usize = 60;
/// The number of colours of series. `page.css` defines the colours.
pub(super) const COLOURS: usize = 8;

/// Values over steps, with one colour.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) label: String,
    pub(super) values: Vec<Option<f64>>,
    /// The lower and the upper end of the interval around each value. Empty if the series has no intervals.
    pub(super) intervals: Vec<Option<(f64, f64)>>,
}

impl Series {
    pub(super) fn new(label: impl Into<String>, values: Vec<Option<f64>>) -> Self {
        Self { label: label.into(), values, intervals: Vec::new() }
    }

    /// Adds intervals. Each of `widths` is the distance from the value to both ends of its interval.
    pub(super) fn with_interval(mut self, widths: &[Option<f64>]) -> Self {
        let interval = |(value, width): (&Option<f64>, &Option<f64>)| {
            let (value, width) = ((*value)?, (*width)?);
            Some((value - width, value + width))
        };
        self.intervals = self.values.iter().zip(widths).map(interval).collect();
        self
    }
}

/// How series are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Lines on an axis that begins at 0 unless a value is negative.
    Lines,
    /// Lines on an axis that shows only the range of the values.
    LinesInRange,
    /// Stacked columns.
    Columns,
}

/// A plot.
#[derive(Debug)]
pub(super) struct Plot {
    /// Its name in the page: letters and hyphens.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// The unit, or the measured quantity.
    pub(super) unit: &'static str,
    pub(super) form: Form,
    pub(super) series: Vec<Series>,
    /// A value that is marked by a line across the plot.
    pub(super) reference: Option<f64>,
}

impl Plot {
    /// The plot as a `figure` of HTML. `labels` has the steps of each point.
    pub(super) fn html(&self, labels: &[String]) -> String {
        let Self { id, title, unit, .. } = self;
        let mut html = format!("<figure id=\"{id}\"><figcaption><b>{title}</b> {unit}</figcaption>");
        let is_empty = self.series.iter().all(|series| series.values.iter().all(Option::is_none));
        if is_empty {
            html.push_str("<p class=\"none\">no values</p></figure>\n");
            return html;
        }
        if self.series.len() > 1 {
            html.push_str(&legend(self.series.iter().map(|series| series.label.as_str())));
        }
        let _ = write!(
            html,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title} over steps\">"
        );
        let axis = Axis::of(self);
        html.push_str(&axis.html());
        html.push_str(&step_labels(labels));
        if let Some(value) = self.reference {
            let y = axis.y(value);
            let _ = write!(html, "<path class=\"reference\" d=\"M{LEFT} {y:.1}H{:.1}\"/>", WIDTH - RIGHT);
        }
        match self.form {
            Form::Columns => html.push_str(&columns(&self.series, labels, &axis)),
            Form::Lines | Form::LinesInRange => {
                for (colour, series) in self.series.iter().enumerate() {
                    html.push_str(&line(series, colour, labels, &axis));
                }
            }
        }
        html.push_str("</svg></figure>\n");
        html
    }
}

/// The legend: the name of each colour.
pub(super) fn legend<'a>(labels: impl Iterator<Item = &'a str>) -> String {
    let entry = |(colour, label): (usize, &str)| {
        format!("<li><i class=\"c{}\"></i>{}</li>", colour % COLOURS, escaped(label))
    };
    format!("<ul class=\"legend\">{}</ul>", labels.enumerate().map(entry).collect::<String>())
}

/// The vertical axis.
struct Axis {
    min: f64,
    max: f64,
    tick: f64,
}

impl Axis {
    fn of(plot: &Plot) -> Self {
        let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
        let mut cover = |value: f64| {
            min = min.min(value);
            max = max.max(value);
        };
        if plot.form == Form::Columns {
            let points = plot.series.iter().map(|series| series.values.len()).max().unwrap_or(0);
            for point in 0..points {
                let parts =
                    plot.series.iter().filter_map(|series| series.values.get(point).copied().flatten());
                cover(parts.map(|part| part.max(0.0)).sum());
            }
        } else {
            for series in &plot.series {
                series.values.iter().flatten().for_each(|value| cover(*value));
                series.intervals.iter().flatten().for_each(|(low, high)| {
                    cover(*low);
                    cover(*high);
                });
            }
        }
        plot.reference.into_iter().for_each(&mut cover);
        if plot.form != Form::LinesInRange {
            cover(0.0);
        }
        Self::around(min, max)
    }

    /// An axis that begins and ends at a tick.
    fn around(min: f64, max: f64) -> Self {
        let span = if max > min { max - min } else { max.abs().max(1.0) * 0.1 };
        let tick = round_tick(span / 4.0);
        // A value at a tick needs no further tick, even if the division is not exact.
        let (min, max) = ((min / tick + 1e-9).floor() * tick, (max / tick - 1e-9).ceil() * tick);
        Self { min, max: if max > min { max } else { min + tick }, tick }
    }

    fn y(&self, value: f64) -> f64 {
        let share = (value - self.min) / (self.max - self.min);
        HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
    }

    fn html(&self) -> String {
        let mut html = String::new();
        let ticks = ((self.max - self.min) / self.tick).round() as usize;
        for number in 0..=ticks {
            let value = self.min + number as f64 * self.tick;
            let (y, right, label) = (self.y(value), WIDTH - RIGHT, short(value));
            let _ = write!(html, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>");
            let _ =
                write!(html, "<text x=\"{}\" y=\"{:.1}\" class=\"y\">{label}</text>", LEFT - 6.0, y + 4.0);
        }
        html
    }
}

/// The smallest number of the form 1, 2 or 5 times a power of ten that is at least `least`. `least` must be
/// above 0.
pub(super) fn round_tick(least: f64) -> f64 {
    let unit = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|factor| factor * unit).find(|tick| *tick >= least).unwrap_or(10.0 * unit)
}

/// The horizontal position of the middle of a point, and the width available for it.
fn place(point: usize, points: usize) -> (f64, f64) {
    let room = (WIDTH - LEFT - RIGHT) / points.max(1) as f64;
    (LEFT + (point as f64 + 0.5) * room, room)
}

fn step_labels(labels: &[String]) -> String {
    let every = labels.len().div_ceil(LABELS).max(1);
    let label = |(point, label): (usize, &String)| {
        let (x, _) = place(point, labels.len());
        let first = label.split(' ').next().unwrap_or_default();
        format!("<text x=\"{x:.1}\" y=\"{:.1}\" class=\"x\">{first}</text>", HEIGHT - BOTTOM + 16.0)
    };
    labels.iter().enumerate().step_by(every).map(label).collect()
}

fn columns(series: &[Series], labels: &[String], axis: &Axis) -> String {
    let mut html = String::new();
    for (point, label) in labels.iter().enumerate() {
        let (x, room) = place(point, labels.len());
        let width = (room * 0.82).min(36.0);
        let mut below = 0.0;
        for (colour, series) in series.iter().enumerate() {
            let Some(value) = series.values.get(point).copied().flatten().filter(|value| *value > 0.0) else {
                continue;
            };
            let (bottom, top) = (axis.y(below), axis.y(below + value));
            let _ = write!(
                html,
                "<rect class=\"mark c{}\" x=\"{:.2}\" y=\"{top:.2}\" width=\"{width:.2}\" height=\"{:.2}\">\
                 <title>step {label}: {} {}</title></rect>",
                colour % COLOURS,
                x - width / 2.0,
                bottom - top,
                escaped(&series.label),
                exact(value),
            );
            below += value;
        }
    }
    html
}

fn line(series: &Series, colour: usize, labels: &[String], axis: &Axis) -> String {
    let mut html = String::new();
    let colour = colour % COLOURS;
    for run in runs(&series.intervals) {
        let upper = run.iter().map(|(point, (_, high))| (*point, *high));
        let lower = run.iter().rev().map(|(point, (low, _))| (*point, *low));
        let outline = path(upper.chain(lower), labels.len(), axis);
        let _ = write!(html, "<path class=\"band c{colour}\" d=\"{outline}Z\"/>");
    }
    for run in runs(&series.values) {
        let outline = path(run.into_iter(), labels.len(), axis);
        let _ = write!(html, "<path class=\"line c{colour}\" d=\"{outline}\"/>");
    }
    let radius = if labels.len() > LARGE_POINTS_MAX { 1.6 } else { 3.0 };
    for (point, (value, label)) in series.values.iter().zip(labels).enumerate() {
        let Some(value) = value else { continue };
        let (x, _) = place(point, labels.len());
        let interval = series.intervals.get(point).copied().flatten();
        let interval = interval.map(|(low, high)| format!(" ({} to {})", exact(low), exact(high)));
        let _ = write!(
            html,
            "<circle class=\"mark c{colour}\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"{radius}\">\
             <title>step {label}: {} {}{}</title></circle>",
            axis.y(*value),
            escaped(&series.label),
            exact(*value),
            interval.unwrap_or_default(),
        );
    }
    html
}

/// Splits the values into runs without gaps. Each value has the index of its point.
fn runs<T: Copy>(values: &[Option<T>]) -> Vec<Vec<(usize, T)>> {
    let mut runs: Vec<Vec<(usize, T)>> = Vec::new();
    let mut has_gap = true;
    for (point, value) in values.iter().enumerate() {
        let Some(value) = value else {
            has_gap = true;
            continue;
        };
        if std::mem::take(&mut has_gap) {
            runs.push(Vec::new());
        }
        if let Some(run) = runs.last_mut() {
            run.push((point, *value));
        }
    }
    runs
}

fn path(values: impl Iterator<Item = (usize, f64)>, points: usize, axis: &Axis) -> String {
    let mut path = String::new();
    for (point, value) in values {
        let letter = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{:.1} {:.1}", place(point, points).0, axis.y(value));
    }
    path
}

/// A number in a few characters, for axes and tiles.
pub(super) fn short(number: f64) -> String {
    let size = number.abs();
    let (scaled, unit) = match size {
        _ if size >= 1e9 => (number / 1e9, "G"),
        _ if size >= 1e6 => (number / 1e6, "M"),
        _ if size >= 1e4 => (number / 1e3, "k"),
        _ => (number, ""),
    };
    let digits = match scaled.abs() {
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 1.0 || size == 0.0 => 2,
        _ => 4,
    };
    format!("{}{unit}", trimmed(format!("{scaled:.digits$}")))
}

/// Formats a number for the text of a mark.
pub(super) fn exact(number: f64) -> String {
    trimmed(format!("{number:.4}"))
}

/// Removes zeros at the end of a fraction.
fn trimmed(number: String) -> String {
    let cut = match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => number.as_str(),
    };
    if cut == "-0" { "0".to_owned() } else { cut.to_owned() }
}

/// Escapes a text for HTML.
pub(super) fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            letter => html.push(letter),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_axes_end_at_ticks() {
        let cases = [
            (0.0, "0"),
            (0.25, "0.25"),
            (-0.5, "-0.5"),
            (1234.0, "1234"),
            (12_340.0, "12.34k"),
            (2e6, "2M"),
            (67_108_864.0, "67.11M"),
        ];
        for (number, expected) in cases {
            assert_eq!(short(number), expected);
        }
        let cases = [((0.0, 1.0), (0.0, 1.0)), ((0.96, 1.01), (0.96, 1.02)), ((0.0, 0.0), (0.0, 0.05))];
        for ((low, high), (min, max)) in cases {
            let axis = Axis::around(low, high);
            assert!(
                (axis.min - min).abs() < 1e-9 && (axis.max - max).abs() < 1e-9,
                "{low} {high} {}",
                axis.max
            );
        }
    }

    #[test]
    fn a_gap_parts_a_line_and_names_are_no_markup() {
        let values = vec![Some(1.0), Some(2.0), None, Some(3.0)];
        assert_eq!(runs(&values), [vec![(0, 1.0), (1, 2.0)], vec![(3, 3.0)]]);
        let labels: Vec<String> = (1..=4).map(|step| step.to_string()).collect();
        let plot = Plot {
            id: "p",
            title: "t",
            unit: "u",
            form: Form::Lines,
            series: vec![Series::new("<b>", values).with_interval(&[Some(0.5), None, None, None])],
            reference: Some(1.0),
        };
        let html = plot.html(&labels);
        assert_eq!(html.matches("<circle").count(), 3);
        assert_eq!(html.matches("class=\"line").count(), 2);
        assert_eq!(html.matches("class=\"band").count(), 1);
        assert!(html.contains("step 1: &lt;b&gt; 1 (0.5 to 1.5)") && !html.contains("<b>\""), "{html}");
        let columns = Plot { form: Form::Columns, ..plot };
        assert_eq!(columns.html(&labels).matches("<rect").count(), 3);
    }
}
