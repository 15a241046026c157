//! A picture of a step: when each request ran, by server.

use std::fmt::Write;

use super::plot::{escaped, exact, round_tick, short};
use crate::report::figures::{KeptTimeline, RequestRow};

/// The maximum number of requests that are drawn. If there are more, the longest requests are drawn.
const DRAWN_MAX: usize = 4000;
/// The maximum number of servers that are drawn. If there are more, the servers whose requests ended last are
/// drawn.
const SERVERS_MAX: usize = 32;
/// Size of the picture, in units of its view box.
pub(super) const WIDTH: f64 = 1140.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 14.0;
/// The height for all requests together, and the limits of the height of one request.
const HEIGHT: f64 = 560.0;
const LANE_MAX: f64 = 9.0;
const LANE_MIN: f64 = 1.2;
/// The gap between two servers, and the minimum height of a server.
const GAP: f64 = 4.0;
const SERVER_MIN: f64 = 14.0;
/// The approximate number of labels of the time axis.
const TICKS: f64 = 8.0;

/// The ends of requests, with the words of the legend, in the order of their colours.
const ENDS: [(&str, &str); 3] = [("answered", "answered"), ("cut_off", "cut off"), ("failed", "failed")];

/// The requests of one server. Requests that overlap are in different lanes.
struct Server<'a> {
    name: &'a str,
    requests: Vec<(&'a RequestRow, usize)>,
    lanes: usize,
}

/// The picture as a `figure` of HTML.
pub(super) fn html(timeline: &KeptTimeline) -> String {
    let requests = longest(timeline);
    let servers = servers(timeline, &requests);
    let drawn: usize = servers.iter().map(|server| server.requests.len()).sum();
    let all = timeline.requests.len() as u64 + timeline.left_out;
    let mut html = format!(
        "<figure id=\"gantt\" class=\"wide\"><figcaption><b>Requests of step {}</b> by server, seconds since the \
         step began; {drawn} of {all} requests, {} of {} servers</figcaption>",
        timeline.step,
        servers.len(),
        timeline.servers.len(),
    );
    if servers.is_empty() {
        html.push_str("<p class=\"none\">no requests</p></figure>\n");
        return html;
    }
    let names = ENDS
        .iter()
        .enumerate()
        .map(|(colour, (_, words))| format!("<li><i class=\"e{colour}\"></i>{words}</li>"));
    let _ = write!(html, "<ul class=\"legend\">{}</ul>", names.collect::<String>());
    let (height, inner) = picture_of(timeline, &servers);
    let _ = write!(
        html,
        "<svg viewBox=\"0 0 {WIDTH} {height:.1}\" role=\"img\" aria-label=\"requests of a step by server\">{inner}"
    );
    html.push_str("</svg></figure>\n");
    html
}

/// The height of the picture and its elements, without the `svg` around them.
pub(super) fn picture(timeline: &KeptTimeline) -> (f64, String) {
    let requests = longest(timeline);
    picture_of(timeline, &servers(timeline, &requests))
}

/// The longest requests.
fn longest(timeline: &KeptTimeline) -> Vec<&RequestRow> {
    let mut requests: Vec<&RequestRow> = timeline.requests.iter().collect();
    requests.sort_by(|one, other| length(other).total_cmp(&length(one)));
    requests.truncate(DRAWN_MAX);
    requests
}

fn picture_of(timeline: &KeptTimeline, servers: &[Server<'_>]) -> (f64, String) {
    let lanes: usize = servers.iter().map(|server| server.lanes).sum();
    let lane = (HEIGHT / lanes.max(1) as f64).clamp(LANE_MIN, LANE_MAX);
    let height: f64 = servers.iter().map(|server| band(server, lane) + GAP).sum();
    let times = Times { from: timeline.began_s, until: timeline.ended_s.max(timeline.began_s + 1e-3) };
    let mut html = times.html(height);
    let mut top = 0.0;
    for server in servers {
        html.push_str(&band_html(server, top, lane, &times));
        top += band(server, lane) + GAP;
    }
    (height + 26.0, html)
}

fn length(request: &RequestRow) -> f64 {
    request.4 - request.3
}

fn band(server: &Server<'_>, lane: f64) -> f64 {
    (server.lanes as f64 * lane).max(SERVER_MIN)
}

/// The servers whose requests ended last, by name, with the requests that are drawn.
fn servers<'a>(timeline: &'a KeptTimeline, requests: &[&'a RequestRow]) -> Vec<Server<'a>> {
    let mut by_server: Vec<Vec<&RequestRow>> = vec![Vec::new(); timeline.servers.len()];
    for request in requests {
        if let Some(of_server) = by_server.get_mut(request.0) {
            of_server.push(request);
        }
    }
    let last = |requests: &[&RequestRow]| requests.iter().map(|request| request.4).fold(0.0, f64::max);
    let mut servers: Vec<(f64, Server<'a>)> = timeline
        .servers
        .iter()
        .zip(by_server)
        .filter(|(_, requests)| !requests.is_empty())
        .map(|(name, requests)| (last(&requests), in_lanes(name, requests)))
        .collect();
    servers.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    servers.truncate(SERVERS_MAX);
    let mut servers: Vec<Server<'a>> = servers.into_iter().map(|(_, server)| server).collect();
    servers.sort_by_key(|server| server.name);
    servers
}

/// Gives each request the first lane that is free when it begins.
fn in_lanes<'a>(name: &'a str, mut requests: Vec<&'a RequestRow>) -> Server<'a> {
    requests.sort_by(|one, other| one.3.total_cmp(&other.3));
    let mut free_at: Vec<f64> = Vec::new();
    let mut placed = Vec::with_capacity(requests.len());
    for request in requests {
        let lane = free_at.iter().position(|free_at| *free_at <= request.3).unwrap_or(free_at.len());
        match free_at.get_mut(lane) {
            Some(free_at) => *free_at = request.4,
            None => free_at.push(request.4),
        }
        placed.push((request, lane));
    }
    Server { name, requests: placed, lanes: free_at.len() }
}

/// The time axis.
struct Times {
    from: f64,
    until: f64,
}

impl Times {
    fn x(&self, time: f64) -> f64 {
        let share = (time.clamp(self.from, self.until) - self.from) / (self.until - self.from);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn html(&self, height: f64) -> String {
        let mut html = String::new();
        let span = self.until - self.from;
        let tick = round_tick(span / TICKS);
        let mut since = 0.0;
        while since <= span {
            let x = self.x(self.from + since);
            let _ = write!(
                html,
                "<path class=\"grid\" d=\"M{x:.1} 0V{height:.1}\"/><text class=\"x\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                height + 16.0,
                short(since)
            );
            since += tick;
        }
        html
    }
}

fn band_html(server: &Server<'_>, top: f64, lane: f64, times: &Times) -> String {
    let mut html = String::new();
    let middle = top + band(server, lane) / 2.0 + 4.0;
    let _ = write!(
        html,
        "<text class=\"y\" x=\"{:.1}\" y=\"{middle:.1}\">{}</text>",
        LEFT - 8.0,
        escaped(&clipped(server.name))
    );
    for (request, in_lane) in &server.requests {
        let RequestRow(_, dispatch, samples, began, ended, end) = request;
        let colour = ENDS.iter().position(|(name, _)| name == end).unwrap_or_default();
        let (x, until) = (times.x(*began), times.x(*ended));
        let _ = write!(
            html,
            "<rect class=\"mark e{colour}\" x=\"{x:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{:.2}\"><title>{}: \
             dispatch {dispatch}, {samples} samples, {} s to {} s, {}</title></rect>",
            top + *in_lane as f64 * lane,
            (until - x).max(0.4),
            lane * 0.85,
            escaped(server.name),
            exact(began - times.from),
            exact(ended - times.from),
            ENDS[colour].1,
        );
    }
    html
}

/// The last characters of a long name. Names of servers usually differ at their ends.
fn clipped(name: &str) -> String {
    const LETTERS_MAX: usize = 22;
    let letters = name.chars().count();
    if letters <= LETTERS_MAX {
        return name.to_owned();
    }
    let end: String = name.chars().skip(letters - LETTERS_MAX + 1).collect();
    format!("\u{2026}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_overlap_are_in_different_lanes() {
        let row = |began: f64, ended: f64| RequestRow(0, 1, 1, began, ended, "answered".to_owned());
        let rows = [row(0.0, 4.0), row(1.0, 2.0), row(2.0, 3.0), row(3.5, 5.0)];
        let server = in_lanes("a", rows.iter().collect());
        let lanes: Vec<usize> = server.requests.iter().map(|(_, lane)| *lane).collect();
        assert_eq!((lanes.as_slice(), server.lanes), (&[0, 1, 1, 1][..], 2));
    }
}
