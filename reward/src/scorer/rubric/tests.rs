use serde_json::json;

use super::{PARTS_MAX, Part, Rubric, RubricConfig};
use crate::{ErrorClass, Gsm8k, Math, RewardError, Score, ScoreInput, Scorer, ScorerConfig};

fn config(value: serde_json::Value) -> ScorerConfig {
    serde_json::from_value(value).unwrap()
}

fn three_parts() -> serde_json::Value {
    json!({"scorer": "rubric", "parts": [
        {"name": "answer", "weight": 1.0, "scorer": "math_dapo", "variant": "2026"},
        {"name": "form", "weight": 0.5, "scorer": "format"},
        {"name": "length", "weight": -0.25, "scorer": "length", "target": 4, "max": 8},
    ]})
}

fn score(scorer: &dyn Scorer, response: &str) -> Score {
    scorer.score(&ScoreInput { response, ground_truth: "7", data_source: "", extra: None }).unwrap()
}

fn error(parts: serde_json::Value) -> RewardError {
    let config = config(json!({"scorer": "rubric", "parts": parts}));
    config.build().err().unwrap_or_else(|| panic!("expected an error, but {parts} builds"))
}

#[test]
fn parts_are_weighted_and_kept() {
    let rubric = config(three_parts()).build().unwrap();
    assert_eq!((rubric.name(), rubric.tail_code_points()), ("rubric", None));
    let good = score(rubric.as_ref(), "<think>hm</think>\\boxed{7}");
    assert_eq!((good.score, good.acc, good.pred.as_deref()), (1.5, 1.0, Some("7")));
    let columns: Vec<(&str, f64)> = good.parts.iter().map(|(name, score)| (&**name, *score)).collect();
    assert_eq!(columns, [("answer", 1.0), ("form", 1.0), ("length", 0.0)]);
    let bad = score(rubric.as_ref(), "no");
    assert_eq!((bad.score, bad.acc), (-1.25, 0.0));
}

#[test]
fn a_named_part_says_what_is_right() {
    let mut value = three_parts();
    value["acc"] = json!("form");
    let rubric = config(value).build().unwrap();
    let formal = score(rubric.as_ref(), "<think></think>8");
    assert_eq!((formal.acc, formal.pred.as_deref()), (1.0, Some("8")));
    let mut unknown = three_parts();
    unknown["acc"] = json!("style");
    assert!(config(unknown).build().err().unwrap().to_string().contains("\"style\""));
}

#[test]
fn options_survive_and_unknown_ones_are_refused() {
    let read = config(three_parts());
    let written = serde_json::to_value(&read).unwrap();
    assert_eq!(serde_json::from_value::<ScorerConfig>(written).unwrap(), read);
    for part in [
        json!({"name": "a", "weight": 1.0, "scorer": "math", "wieght": 2.0}),
        json!({"name": "a", "weight": 1.0, "scorer": "format", "tag": []}),
        json!({"name": "a", "weight": 1.0}),
        json!({"name": "a", "scorer": "math"}),
    ] {
        let refused = serde_json::from_value::<RubricConfig>(json!({"parts": [part]}));
        assert!(refused.is_err(), "{part}");
    }
}

#[test]
fn an_invalid_rubric_is_refused_with_the_reason() {
    let math = |name: &str, weight: f64| json!({"name": name, "weight": weight, "scorer": "math"});
    let nested = json!({"name": "deep", "weight": 1.0, "scorer": "rubric", "parts": [math("a", 1.0)]});
    let broken = json!({"name": "a", "weight": 1.0, "scorer": "regex", "pattern": "["});
    let many: Vec<_> = (0..=PARTS_MAX).map(|index| math(&index.to_string(), 1.0)).collect();
    for (parts, words) in [
        (json!([]), "1 to"),
        (json!(many), "1 to"),
        (json!([nested]), "rubric within"),
        (json!([broken]), "unclosed"),
        (json!([math("a", 1.0), math("a", 2.0)]), "twice"),
        (json!([math("", 1.0)]), "name"),
        (json!([math("a", 1e7)]), "weight"),
    ] {
        let error = error(parts);
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.class(), ErrorClass::Client);
    }
}

#[test]
fn a_rubric_can_be_made_of_built_scorers() {
    let part = |name: &str, weight, scorer| Part { name: name.into(), weight, scorer };
    let inner = Rubric::new(vec![part("a", 1.0, std::sync::Arc::new(Math))], None).unwrap();
    assert!(Rubric::new(vec![part("b", 1.0, std::sync::Arc::new(inner))], None).is_err());
    assert!(Rubric::new(vec![part("b", f64::NAN, std::sync::Arc::new(Math))], None).is_err());
    let short = Rubric::new(vec![part("b", 2.0, std::sync::Arc::new(Gsm8k::default()))], None).unwrap();
    assert_eq!(short.tail_code_points(), Some(300));
    assert_eq!(score(&short, "#### 7").score, 2.0);
}
