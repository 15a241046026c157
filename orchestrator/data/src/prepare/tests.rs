#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use super::*;

/// A data set with ten problems, each of which occurs twice. One problem has two different answers.
fn downloaded(dir: &TempDir) -> PathBuf {
    let line = |problem: u32, answer: u32| {
        format!("{{\"prompt\": \"p{problem}\", \"answer\": \"{answer}\", \"id\": 7}}\r\n")
    };
    let mut text: String = (0..20).map(|row| line(row % 10, row % 10)).collect();
    text.push_str(&line(3, 99));
    let file = dir.path().join("downloaded.jsonl");
    fs::write(&file, text).unwrap();
    file
}

fn config(dir: &TempDir, train: PathBuf) -> Prepare {
    Prepare {
        train: vec![train],
        validation: Vec::new(),
        validation_prompts: 3,
        seed: 42,
        columns: None,
        train_to: dir.path().join("out/train.jsonl"),
        validation_to: Some(dir.path().join("out/validation.jsonl")),
        validation_kept: Vec::new(),
    }
}

fn prompts(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["prompt"].to_string()).collect()
}

#[test]
fn duplicates_go_and_no_prompt_is_in_both_splits() {
    let dir = TempDir::new().unwrap();
    let config = config(&dir, downloaded(&dir));
    let made = prepare(&config).unwrap();
    let validation = made.validation.clone().unwrap();
    let (train_rows, validation_rows) = (prompts(&made.train.file), prompts(&validation.file));
    assert_eq!((made.train.rows + validation.rows, made.train.read), (11, 21));
    assert_eq!(made.train.rows, train_rows.len() as u64);
    let apart: BTreeSet<&String> = validation_rows.iter().collect();
    assert_eq!(apart.len(), 3, "three prompts");
    assert!(train_rows.iter().all(|prompt| !apart.contains(prompt)));
    assert_eq!(made.train.conflicting_prompts + validation.conflicting_prompts, 1);
    assert_eq!(made.train.in_validation, validation.read);
    // A row keeps its text.
    let text = fs::read_to_string(&made.train.file).unwrap();
    assert!(text.lines().all(|line| line.ends_with("\"id\": 7}")), "{text}");
    assert_eq!(prepare(&config).unwrap(), made, "the same files give the same bytes");
    let other = Prepare { seed: 43, ..config };
    assert_ne!(prompts(&prepare(&other).unwrap().validation.unwrap().file), validation_rows);
}

#[test]
fn given_validation_files_are_kept_out_of_training() {
    let dir = TempDir::new().unwrap();
    let given = dir.path().join("given.jsonl");
    fs::write(&given, "{\"prompt\": \"p1\", \"answer\": \"1\"}\n{\"prompt\": \"new\", \"answer\": \"2\"}\n")
        .unwrap();
    let config = Prepare { validation: vec![given], ..config(&dir, downloaded(&dir)) };
    let made = prepare(&config).unwrap();
    assert_eq!(made.validation.unwrap().rows, 2);
    assert_eq!((made.train.rows, made.train.in_validation, made.train.duplicates), (10, 2, 9));
}

#[test]
fn a_prompt_as_text_and_as_a_message_is_in_one_split() {
    let dir = TempDir::new().unwrap();
    let both = dir.path().join("both.jsonl");
    let rows = (0..20).map(|row| {
        let prompt = match row < 10 {
            true => format!("\"p{row}\""),
            false => format!("[{{\"role\": \"user\", \"content\": \"p{}\"}}]", row - 10),
        };
        format!("{{\"prompt\": {prompt}, \"answer\": \"1\"}}\n")
    });
    fs::write(&both, rows.collect::<String>()).unwrap();
    let made = prepare(&config(&dir, both)).unwrap();
    let validation = made.validation.unwrap();
    assert_eq!((validation.rows, validation.duplicates), (3, 3));
    assert_eq!((made.train.rows, made.train.duplicates, made.train.in_validation), (7, 7, 6));
}

#[test]
fn a_validation_file_that_stays_must_have_other_prompts() {
    let dir = TempDir::new().unwrap();
    let with_split = config(&dir, downloaded(&dir));
    let earlier = prepare(&with_split).unwrap();
    let kept = earlier.validation.unwrap().file;
    let before = fs::read(&earlier.train.file).unwrap();
    let without_split =
        Prepare { validation_to: None, validation_kept: vec![kept.clone()], ..with_split.clone() };
    let error = prepare(&without_split).unwrap_err().to_string();
    assert!(
        error.contains("prompts=3 of the training data are in file=") && error.contains("validation.jsonl")
    );
    assert_eq!(fs::read(&earlier.train.file).unwrap(), before, "nothing was written");
    fs::write(&kept, "{\"prompt\": \"other\", \"answer\": \"1\"}\n").unwrap();
    assert_eq!(prepare(&without_split).unwrap().train.rows, 11);
}

#[test]
fn a_file_that_cannot_be_prepared_is_named_and_leaves_no_output() {
    let dir = TempDir::new().unwrap();
    let broken = dir.path().join("broken.jsonl");
    fs::write(&broken, "{\"prompt\": \"p\", \"answer\": \"1\"}\n{\"prompt\": 3, \"answer\": \"1\"}\n")
        .unwrap();
    let error = prepare(&Prepare { validation_to: None, ..config(&dir, broken) }).unwrap_err().to_string();
    assert!(error.contains("broken.jsonl:2"), "{error}");
    let everything = Prepare { validation_prompts: 99, ..config(&dir, downloaded(&dir)) };
    let error = prepare(&everything).unwrap_err().to_string();
    assert!(error.contains("no rows are left for file=") && error.contains("train.jsonl"), "{error}");
    assert_eq!(fs::read_dir(dir.path().join("out")).unwrap().count(), 1, "only the validation file");
}

/// The truth: the facts that come with the file, counted again with another reader of JSON.
#[test]
fn dapo_math_17k_is_prepared() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/dapo_math_17k.svs.parquet");
    if !file.exists() {
        eprintln!("skipped: {} does not exist", file.display());
        return;
    }
    let dir = TempDir::new().unwrap();
    let made = prepare(&Prepare { validation_to: None, ..config(&dir, file) }).unwrap().train;
    assert_eq!((made.read, made.conflicting_prompts), (17_917, 11));
    let mut answers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let text = fs::read_to_string(&made.file).unwrap();
    for line in text.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let answer = row["reward_model"]["ground_truth"].as_str().unwrap().to_owned();
        assert!(answers.entry(row["prompt"].to_string()).or_default().insert(answer), "twice: {line}");
    }
    assert_eq!(answers.len(), 17_290);
    assert_eq!(text.lines().count() as u64, made.rows);
    assert_eq!(made.rows, 17_290 + 11);
    assert_eq!(made.xxh128, xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
}
