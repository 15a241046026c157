#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::accepted::mean_and_std;
use super::*;

/// The steps in a file of lines, in the order of the file.
fn steps(path: &std::path::Path) -> Vec<u64> {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    let step =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64().unwrap();
    text.lines().map(step).collect()
}

#[test]
fn a_file_of_figures_has_each_step_once() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join(STEPS_FILE);
    let mut file = FigureFile::open(&path, true, |_| true).unwrap();
    for step in [1, 2, 3] {
        assert!(file.append(step, &json!({ "step": step })).unwrap());
    }
    assert!(!file.append(2, &json!({ "step": 2, "again": true })).unwrap());
    drop(file);
    assert_eq!(steps(&path), [1, 2, 3]);

    // A process ended in the middle of a line.
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{whole}{{\"step\":4,\"tim")).unwrap();
    let mut file = FigureFile::open(&path, false, |_| true).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), whole);
    assert!(file.has(3) && !file.has(4));
    assert!(file.append(4, &json!({ "step": 4 })).unwrap());
    drop(file);

    // The run continues with step 2, which lacks a group, and with the steps after 3.
    let mut file = FigureFile::open(&path, false, |step| step == 1 || step == 3).unwrap();
    assert_eq!(steps(&path), [1, 3]);
    for step in [2, 4] {
        assert!(file.append(step, &json!({ "step": step })).unwrap());
    }
    assert_eq!(steps(&path), [1, 3, 2, 4]);
}

#[test]
fn an_incomplete_line_is_dropped_when_a_file_is_opened() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join(STEPS_FILE);
    fs::write(&path, "{\"step\":1}\nnot json\n{\"no\":1}\n{\"step\":1,\"twice\":1}\n{\"step\":2}\n").unwrap();
    FigureFile::open(&path, false, |_| true).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "{\"step\":1}\n{\"step\":2}\n");
}

#[test]
fn the_deviation_is_that_of_all_values() {
    assert_eq!(mean_and_std(&[]), None);
    assert_eq!(mean_and_std(&[5.0]), Some((5.0, 0.0)));
    let (mean, std) = mean_and_std(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
    assert_eq!((mean, std), (5.0, 2.0));
}
