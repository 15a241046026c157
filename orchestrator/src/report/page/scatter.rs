//! A picture of points on two axes, as an SVG file.

use std::fmt::Write;

use super::plot::{COLOURS, escaped, exact, round_tick, short};
use super::standalone;

/// Size of the picture of one set of points, and the margins around its area, in units of the view box.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 40.0;
/// Height of a line of the legend, and the maximum number of points in the legend.
const LEGEND_LINE: f64 = 17.0;
const LEGEND_MAX: usize = 40;
const RADIUS: f64 = 5.0;

/// A point.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Its name in the legend.
    pub label: String,
    /// Its horizontal place.
    pub x: f64,
    /// Its vertical place. A point whose place is not a number is not drawn.
    pub y: f64,
    /// Whether the point is filled.
    pub is_filled: bool,
}

/// A set of points.
#[derive(Debug, Clone, PartialEq)]
pub struct Scatter {
    /// The quantity and the unit of the vertical axis.
    pub title: String,
    /// The quantity and the unit of the horizontal axis.
    pub x_unit: String,
    /// The points. Points of the same index have the same number and colour in all sets of a picture.
    pub points: Vec<Point>,
}

/// The range of an axis from 0 on, which ends at a tick.
struct Range {
    max: f64,
    tick: f64,
}

impl Range {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let max = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let max = if max > 0.0 { max } else { 1.0 };
        let tick = round_tick(max / 4.0);
        Self { max: (max / tick - 1e-9).ceil() * tick, tick }
    }

    fn share(&self, value: f64) -> f64 {
        value / self.max
    }

    fn ticks(&self) -> impl Iterator<Item = f64> + '_ {
        (0..=(self.max / self.tick).round() as usize).map(|number| number as f64 * self.tick)
    }
}

impl Scatter {
    /// A picture of all sets side by side, with one legend.
    pub fn svg(sets: &[Self]) -> String {
        let labels: Vec<&Point> = sets.first().map(|set| set.points.iter().collect()).unwrap_or_default();
        let shown = labels.len().min(LEGEND_MAX);
        let height = HEIGHT + LEGEND_LINE * (shown as f64 + 1.5);
        let mut inner = String::new();
        for (number, set) in sets.iter().enumerate() {
            let _ = write!(
                inner,
                "<g transform=\"translate({:.1} 0)\">{}</g>",
                number as f64 * WIDTH,
                set.area()
            );
        }
        for (number, point) in labels.iter().take(shown).enumerate() {
            let y = HEIGHT + LEGEND_LINE * (number as f64 + 1.0);
            inner.push_str(&mark(number, LEFT, y - 4.0, point.is_filled, ""));
            let _ = write!(
                inner,
                "<text x=\"{:.1}\" y=\"{y:.1}\">{} {}</text>",
                LEFT + 12.0,
                number + 1,
                escaped(&point.label)
            );
        }
        if labels.len() > shown {
            let y = HEIGHT + LEGEND_LINE * (shown as f64 + 1.0);
            let _ = write!(inner, "<text x=\"{LEFT}\" y=\"{y:.1}\">and {} more</text>", labels.len() - shown);
        }
        standalone(WIDTH * sets.len().max(1) as f64, height, &inner)
    }

    fn area(&self) -> String {
        let x_range = Range::of(self.points.iter().map(|point| point.x));
        let y_range = Range::of(self.points.iter().map(|point| point.y));
        let x_of = |x: f64| LEFT + x_range.share(x) * (WIDTH - LEFT - RIGHT);
        let y_of = |y: f64| HEIGHT - BOTTOM - y_range.share(y) * (HEIGHT - BOTTOM - TOP);
        let mut html = format!("<text x=\"{LEFT}\" y=\"{:.1}\">{}</text>", TOP - 12.0, escaped(&self.title));
        for tick in y_range.ticks() {
            let (y, right) = (y_of(tick), WIDTH - RIGHT);
            let _ = write!(html, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>");
            let (x, label) = (LEFT - 6.0, short(tick));
            let _ = write!(html, "<text x=\"{x}\" y=\"{:.1}\" class=\"y\">{label}</text>", y + 4.0);
        }
        for tick in x_range.ticks() {
            let (x, y) = (x_of(tick), HEIGHT - BOTTOM + 16.0);
            let _ = write!(html, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"x\">{}</text>", short(tick));
        }
        let (x, y) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 6.0);
        let _ = write!(html, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"x\">{}</text>", escaped(&self.x_unit));
        for (number, point) in self.points.iter().enumerate() {
            if !(point.x.is_finite() && point.y.is_finite()) {
                continue;
            }
            let (x, y) = (x_of(point.x), y_of(point.y));
            let title = format!("{}: {}, {}", point.label, exact(point.x), exact(point.y));
            html.push_str(&mark(number, x, y, point.is_filled, &title));
            let _ = write!(html, "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", x + 7.0, y - 5.0, number + 1);
        }
        html
    }
}

fn mark(number: usize, x: f64, y: f64, is_filled: bool, title: &str) -> String {
    let colour = number % COLOURS;
    let form = if is_filled { "mark" } else { "ring" };
    format!(
        "<circle class=\"{form} c{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{RADIUS}\"><title>{}</title></circle>",
        escaped(title)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_point_has_a_mark_in_each_set_and_a_line_in_the_legend() {
        let point = |label: &str, y: f64| Point { label: label.to_owned(), x: 10.0, y, is_filled: y < 2.0 };
        let set = |title: &str, ys: [f64; 2]| Scatter {
            title: title.to_owned(),
            x_unit: "s".to_owned(),
            points: vec![point("a<1", ys[0]), point("b", ys[1])],
        };
        let svg = Scatter::svg(&[set("one", [1.0, 4.0]), set("other", [0.5, f64::NAN])]);
        // Two marks are in the legend, two are in the first set, and one is in the second set.
        assert_eq!(svg.matches("<circle").count(), 5);
        assert!(svg.contains("1 a&lt;1") && svg.contains("xmlns="), "{svg}");
        // The largest value is at the top tick: 4 is at the top of the first area.
        assert!(svg.contains(&format!("cy=\"{TOP:.1}\"")), "{svg}");
    }
}
