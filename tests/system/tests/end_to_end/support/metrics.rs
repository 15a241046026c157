//! Scrapes pages of metrics, and reads the names that the documentation lists.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::root;

/// The status and the body of `GET /metrics`, with a bearer token if there is one.
pub(crate) fn scrape(url: &str, token: Option<&str>) -> (u16, String) {
    let host = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let authorization = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: {host}\r\n{authorization}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The names of metrics in the tables of a section of the documentation's page.
pub(crate) fn documented(section: &str) -> BTreeSet<String> {
    let page = std::fs::read_to_string(root().join("docs/src/metrics.md")).unwrap();
    let heading = format!("## {section}");
    let lines = page.lines().skip_while(|line| *line != heading).skip(1);
    let rows = lines.take_while(|line| !line.starts_with("## ")).filter_map(|line| line.strip_prefix("| `"));
    let names: BTreeSet<String> = rows.map(|row| row.split('`').next().unwrap().to_owned()).collect();
    assert!(!names.is_empty(), "no metrics in the section {section:?}");
    assert!(names.iter().all(|name| name.starts_with("rolldock_")), "{names:?}");
    names
}

/// The values on the pages of a process so far: for each metric, the sum of its series at each scrape.
#[derive(Default)]
pub(crate) struct Scrapes {
    values: BTreeMap<String, BTreeSet<String>>,
}

impl Scrapes {
    /// Adds a page. Checks its form: each metric has one type, and each series occurs once.
    pub(crate) fn note(&mut self, page: &str) {
        let mut types: BTreeMap<&str, &str> = BTreeMap::new();
        for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            assert!(types.insert(name, kind).is_none(), "{name} has two types");
        }
        let mut sums: BTreeMap<&str, f64> = types.keys().map(|name| (*name, 0.0)).collect();
        let mut series: BTreeSet<&str> = BTreeSet::new();
        for line in page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (labelled, value) = line.rsplit_once(' ').unwrap();
            assert!(series.insert(labelled), "{labelled} comes twice");
            let name = labelled.split('{').next().unwrap();
            let histogram = name.strip_suffix("_count").filter(|name| types.get(name) == Some(&"histogram"));
            if let Some(sum) = sums.get_mut(histogram.unwrap_or(name)) {
                *sum += value.parse::<f64>().unwrap().abs();
            }
        }
        for (name, sum) in sums {
            self.values.entry(name.to_owned()).or_default().insert(sum.to_string());
        }
    }

    /// The metrics of `names` that no page had.
    pub(crate) fn absent<'a>(&self, names: &'a BTreeSet<String>) -> Vec<&'a String> {
        names.iter().filter(|name| !self.values.contains_key(*name)).collect()
    }

    /// The metrics of `names` that were 0 or absent on every page.
    pub(crate) fn unmoved<'a>(&self, names: &'a BTreeSet<String>) -> Vec<&'a String> {
        let has_moved =
            |name: &String| self.values.get(name).is_some_and(|values| values.iter().any(|sum| sum != "0"));
        names.iter().filter(|name| !has_moved(name)).collect()
    }
}
