use serde_json::json;

use super::{JsonSchema, JsonSchemaConfig, SCHEMA_BYTES_MAX};
use crate::{ErrorClass, RewardError, Score, ScoreInput, Scorer};

fn scorer(schema: Option<serde_json::Value>) -> JsonSchema {
    JsonSchema::new(&JsonSchemaConfig { schema }).unwrap()
}

fn score(scorer: &JsonSchema, response: &str, ground_truth: &str) -> Result<Score, RewardError> {
    scorer.score(&ScoreInput { response, ground_truth, data_source: "", extra: None })
}

#[test]
fn the_document_is_the_last_block_or_everything() {
    let points = scorer(Some(json!({"required": ["x"], "type": "object"})));
    for (response, right) in [
        (" {\"x\": 1}\n", true),
        ("Here:\n```json\n{\"x\": 1}\n```\nDone.", true),
        ("```json\n{}\n```\n```json\n{\"x\": 1}\n```", true),
        ("```json\n{\"x\": 1}\n```\n```json\n{}\n```", false),
        ("```json {\"x\": \"a ``` within\"} ```", true),
        ("```json\n{\"x\": 1}", true),
        ("```json\n{\"x\": 1} and more\n```", false),
        ("```json\n{\"x\": 1", false),
        ("```json\n```", false),
        ("Here: {\"x\": 1}", false),
        ("", false),
    ] {
        assert_eq!(score(&points, response, "").unwrap().acc == 1.0, right, "{response:?}");
    }
    let found = score(&points, "```json\n {\"x\": 1}\n```", "").unwrap();
    assert_eq!(found.pred.as_deref(), Some("{\"x\": 1}"));
    assert_eq!(score(&points, "no document", "").unwrap().pred, None);
}

#[test]
fn the_ground_truth_is_the_schema_of_a_row() {
    let of_row = scorer(None);
    assert_eq!(score(&of_row, "5", r#"{"type": "integer"}"#).unwrap().acc, 1.0);
    assert_eq!(score(&of_row, "5", r#"{"type": "string"}"#).unwrap().acc, 0.0);
    let long = format!("{{\"title\": \"{}\"}}", "x".repeat(SCHEMA_BYTES_MAX));
    for truth in ["", "five", r#"{"oneOf": []}"#, long.as_str()] {
        assert_eq!(score(&of_row, "5", truth).unwrap_err().class(), ErrorClass::Client, "{truth:.40}");
    }
    let fixed = scorer(Some(json!(true)));
    assert_eq!(score(&fixed, "5", "no schema").unwrap().acc, 1.0, "the configuration's schema wins");
}

#[test]
fn a_document_that_is_too_deep_is_none() {
    let any = scorer(Some(json!(true)));
    assert_eq!(score(&any, &"[".repeat(1 << 16), "").unwrap().acc, 0.0);
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    assert_eq!(score(&any, &deep, "").unwrap().acc, 0.0);
}
