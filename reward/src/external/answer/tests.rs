use proptest::prelude::*;

use super::*;
use crate::invariants;

fn read(text: &str) -> Result<Score, RewardError> {
    read_score("test", text.as_bytes())
}

#[test]
fn every_form_of_an_answer_is_read() {
    let score = |score, acc, pred: Option<&str>| Score {
        score,
        acc,
        pred: pred.map(str::to_owned),
        ..Score::default()
    };
    for (text, wanted) in [
        ("1", score(1.0, 1.0, None)),
        ("true", score(1.0, 1.0, None)),
        ("false", score(0.0, 0.0, None)),
        ("-2.5", score(-2.5, 0.0, None)),
        ("7", score(7.0, 1.0, None)),
        (r#"{"id": 3, "score": 0.25}"#, score(0.25, 0.25, None)),
        (r#"{"score": -1, "acc": false, "pred": "42"}"#, score(-1.0, 0.0, Some("42"))),
        (r#"{"score": 3, "acc": 0.5, "pred": 42, "error": null}"#, score(3.0, 0.5, Some("42"))),
    ] {
        assert_eq!(read(text), Ok(wanted), "{text}");
    }
}

#[test]
fn parts_are_kept_by_name() {
    let parts = |text: &str| read(&format!(r#"{{"score": 1, "parts": {text}}}"#)).map(|score| score.parts);
    assert_eq!(parts("null"), Ok(Parts::new()));
    let named = [("form".into(), 0.5), ("right".into(), 1.0)];
    assert_eq!(parts(r#"{"right": true, "form": 0.5}"#), Ok(named.into_iter().collect()));
    let many: Vec<String> = (0..=PARTS_MAX).map(|index| format!("\"{index}\": 0")).collect();
    for text in [
        "1".to_owned(),
        "[1]".to_owned(),
        r#"{"a": "1"}"#.to_owned(),
        r#"{"a": 1e39}"#.to_owned(),
        r#"{"": 1}"#.to_owned(),
        format!("{{\"{}\": 1}}", "a".repeat(PART_NAME_BYTES_MAX + 1)),
        format!("{{{}}}", many.join(",")),
    ] {
        let error = parts(&text).unwrap_err();
        assert!(error.to_string().contains("\"parts\" to be"), "{text}: {error}");
    }
}

#[test]
fn what_is_no_answer_is_named_and_quoted() {
    for (text, reason) in [
        ("", "to be JSON"),
        ("NaN", "to be JSON"),
        ("1e999", "to be JSON"),
        ("<html>", "to be JSON"),
        ("1e39", "finite number of 32 bits"),
        (r#"{"score": -1e300}"#, "\"score\" to be"),
        ("null", "finite number"),
        ("\"1\"", "finite number"),
        ("[1]", "finite number"),
        ("{}", "\"score\" or \"error\""),
        (r#"{"score": "1"}"#, "\"score\" to be"),
        (r#"{"score": null}"#, "\"score\" to be"),
        (r#"{"score": 1, "acc": 1.5}"#, "\"acc\" to be"),
    ] {
        let error = read(text).unwrap_err();
        assert!(matches!(error, RewardError::Nonsense { .. }), "{text}: {error}");
        assert!(error.to_string().contains(reason), "{text}: {error}");
    }
    let long = format!("\"{}\"", "é".repeat(10_000));
    let RewardError::Nonsense { quote, .. } = read(&long).unwrap_err() else { panic!("no nonsense") };
    assert_eq!(quote.chars().count(), QUOTE_CHARS_MAX);
}

#[test]
fn an_error_is_the_functions_own() {
    let error = read(r#"{"error": "ValueError: no box"}"#).unwrap_err();
    assert_eq!(error, RewardError::Raised { what: "test".into(), reason: "ValueError: no box".into() });
    assert!(!error.may_be_outage());
    let error = read(r#"{"error": "no connection", "unavailable": true}"#).unwrap_err();
    assert_eq!(error, RewardError::Unavailable { what: "test".into(), reason: "no connection".into() });
    assert!(error.may_be_outage());
}

proptest! {
    #[test]
    fn any_answer_is_a_sound_score_or_an_error(text in "(\\{\"score\": ?|\\{\"acc\":|[0-9.eE+-]{1,6}|[\\[\\]{},:\"]|true|.){0,12}") {
        if let Ok(score) = read(&text) {
            prop_assert_eq!(invariants::score_is_sound(&score), Ok(()));
        }
    }

    #[test]
    fn a_number_is_its_own_score(number in -3e38..3e38_f64) {
        let score = read(&serde_json::to_string(&number).unwrap()).unwrap().score;
        // The JSON parser may be wrong in the last bit, which is far below the 32 bits that trainers keep.
        prop_assert!((score - number).abs() <= 2.0 * f64::EPSILON * number.abs(), "{} is not {}", score, number);
    }
}
