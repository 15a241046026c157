//! Tests of the scorers of form and of plain comparison.

use super::*;

/// The error of a configuration that can be deserialised but not built.
fn refused(config: serde_json::Value) -> String {
    let read = serde_json::from_value::<ScorerConfig>(config).unwrap();
    let error = read.build().err().unwrap_or_else(|| panic!("expected an error, but {read:?} builds"));
    assert_eq!(error.class(), crate::ErrorClass::Client);
    error.to_string()
}

#[test]
fn exact_matches_ignore_what_they_are_told_to() {
    let plain = built(json!({"scorer": "exact_match"}));
    assert_eq!(score_of(plain.as_ref(), " Paris\n", "Paris").score, 1.0);
    assert_eq!(score_of(plain.as_ref(), "paris", "Paris").score, 0.0);
    let lax = built(json!({"scorer": "exact_match", "ignore_case": true, "ignore_white_space": true,
                           "ignore_punctuation": true, "after": "Answer:"}));
    let score = score_of(lax.as_ref(), "Answer: Rome. Answer: new  YORK!", "New York");
    assert_eq!((score.score, score.pred.as_deref()), (1.0, Some("new  YORK!")));
    let missing = score_of(lax.as_ref(), "New York", "New York");
    assert_eq!((missing.score, missing.pred), (0.0, None), "without the marker there is no answer");
    let no_points = built(json!({"scorer": "exact_match", "ignore_punctuation": true}));
    assert_eq!(score_of(no_points.as_ref(), "a b .", "a b").score, 1.0, "no white space stays at the end");
    assert!(refused(json!({"scorer": "exact_match", "after": ""})).contains("exact_match.after"));
}

#[test]
fn patterns_are_found_or_compared() {
    let present = built(json!({"scorer": "regex", "pattern": r"(?i)\bbecause\b"}));
    assert_eq!(score_of(present.as_ref(), "Because I say so", "").pred.as_deref(), Some("Because"));
    assert_eq!(score_of(present.as_ref(), "becauses", "").score, 0.0);
    let group = built(json!({"scorer": "regex", "pattern": r"x\s*=\s*(\d+|(?:nil))?", "group": 1}));
    assert_eq!(score_of(group.as_ref(), "so x = 5, x = 6", "5").score, 1.0, "the first match counts");
    assert_eq!(score_of(group.as_ref(), "so x = ?", "5").pred, None, "the group is not in the match");
    let last = built(json!({"scorer": "regex", "pattern": r"(?s).*x = (\d+)", "group": 1}));
    assert_eq!(score_of(last.as_ref(), "x = 5\nx = 6\n", " 6 ").score, 1.0);
}

#[test]
fn patterns_are_checked_when_built() {
    let error = refused(json!({"scorer": "regex", "pattern": "a("}));
    assert!(error.contains("pattern=\"a(\"") && error.contains("unclosed group"), "{error}");
    assert!(refused(json!({"scorer": "regex", "pattern": "a", "group": 1})).contains("group=1"));
    assert!(refused(json!({"scorer": "regex", "pattern": r"\w{1000}{1000}"})).contains("size limit"));
    let long = refused(json!({"scorer": "regex", "pattern": "a".repeat(PATTERN_BYTES_MAX + 1)}));
    assert!(long.contains("expected at most bytes") && long.len() < 400, "{long}");
}

#[test]
fn a_thought_and_an_answer_are_the_format() {
    let think = built(json!({"scorer": "format"}));
    for (response, pred) in [
        ("<think>a</think> 5 ", Some("5")),
        ("\n<think></think>\n5", Some("5")),
        ("<think>a</think>\n", None),
        ("so <think>a</think>5", None),
        ("<think>a</think>5<think>b</think>6", None),
        ("<think>a<think>b</think>5", None),
        ("<think>a</think></think>5", None),
        ("</think><think>5", None),
        ("a</think>5", None),
        ("", None),
    ] {
        let score = score_of(think.as_ref(), response, "");
        assert_eq!((score.score == 1.0, score.pred.as_deref()), (pred.is_some(), pred), "{response:?}");
    }
}

#[test]
fn tags_come_in_their_order() {
    let both = built(json!({"scorer": "format", "tags": ["think", "answer"], "trailing_answer": false}));
    for (response, pred) in [
        ("<think>a</think>\n<answer> 5 </answer>\n", Some("5")),
        ("<think>a</think><answer> </answer>", None),
        ("<think>a</think> so <answer>5</answer>", None),
        ("<think>a</think><answer>5</answer>.", None),
        ("<answer>5</answer><think>a</think>", None),
        ("<think><answer>4</answer></think><answer>5</answer>", None),
        ("<think>a<answer></think>5</answer>", None),
    ] {
        assert_eq!(score_of(both.as_ref(), response, "").pred.as_deref(), pred, "{response:?}");
    }
    let prefilled = built(json!({"scorer": "format", "opened_by_prompt": true}));
    assert_eq!(score_of(prefilled.as_ref(), "hm</think>5", "").pred.as_deref(), Some("5"));
    assert_eq!(score_of(prefilled.as_ref(), "<think>hm</think>5", "").pred, None);
    for tags in [json!([]), json!([""]), json!(["a b"]), json!(["a", "a"]), json!(vec!["a"; TAGS_MAX + 1])] {
        assert!(refused(json!({"scorer": "format", "tags": tags})).contains("format.tags"), "{tags}");
    }
}

#[test]
fn length_falls_from_the_target_to_the_end() {
    let linear = built(json!({"scorer": "length", "target": 2, "max": 6}));
    let cosine = built(json!({"scorer": "length", "target": 2, "max": 6, "ramp": "cosine"}));
    for (count, even, wave) in [
        (0, 1.0, 1.0),
        (2, 1.0, 1.0),
        (3, 0.75, 0.853_553_390_593_273_8),
        (4, 0.5, 0.5),
        (5, 0.25, 0.146_446_609_406_726_2),
        (6, 0.0, 0.0),
        (99, 0.0, 0.0),
    ] {
        let response = "é".repeat(count);
        assert_eq!(score_of(linear.as_ref(), &response, "").score, even, "{count}");
        assert!((score_of(cosine.as_ref(), &response, "").acc - wave).abs() < 1e-12, "{count}");
    }
    let step = Length { target: 3, max: 3, ramp: Ramp::Cosine };
    assert_eq!([step.of(3), step.of(4)], [1.0, 0.0]);
    assert!(refused(json!({"scorer": "length", "target": 3, "max": 2})).contains("target=3"));
}

#[test]
fn repeated_ngrams_are_counted() {
    let words = |n| Repetition { n, unit: RepetitionUnit::Words, factor: 1.0 };
    // Of the bigrams `a b`, `b a`, `a b` and `b a`, two repeat an earlier one.
    assert_eq!(words(2).share("a b a\nb  a"), 0.5);
    assert_eq!(words(2).share("a b c"), 0.0);
    assert_eq!(words(3).share("a b"), 0.0, "shorter than an n-gram");
    assert_eq!(words(0).share("a a a a"), 0.75, "0 counts as 1");
    let points = Repetition { n: 2, unit: RepetitionUnit::CodePoints, factor: 1.0 };
    assert_eq!(points.share("ééé"), 0.5);
    let penalty = built(json!({"scorer": "repetition", "n": 1, "factor": 4.0}));
    let score = score_of(penalty.as_ref(), "no no no no", "");
    assert_eq!((score.score, score.acc), (-3.0, 0.25));
    assert!(score_of(penalty.as_ref(), "", "").score.is_sign_positive(), "no penalty is 0 and not -0");
    for (key, value) in
        [("n", json!(0)), ("n", json!(NGRAM_MAX + 1)), ("factor", json!(-1.0)), ("factor", json!(1e39))]
    {
        let error = refused(json!({"scorer": "repetition", key: value}));
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn every_option_is_read_written_and_unknown_ones_refused() {
    for config in [
        json!({"scorer": "choice"}),
        json!({"scorer": "exact_match", "ignore_case": true, "ignore_white_space": false,
               "ignore_punctuation": false, "after": "####"}),
        json!({"scorer": "regex", "pattern": "a", "group": 0}),
        json!({"scorer": "json_schema", "schema": {"type": "object"}}),
        json!({"scorer": "format", "tags": ["a"], "trailing_answer": false, "opened_by_prompt": true}),
        json!({"scorer": "length", "target": 1, "max": 2, "ramp": "cosine"}),
        json!({"scorer": "repetition", "n": 4, "unit": "code_points", "factor": 0.5}),
    ] {
        let read: ScorerConfig = serde_json::from_value(config.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), config);
        let mut unknown = config;
        unknown["x"] = json!(1);
        assert!(serde_json::from_value::<ScorerConfig>(unknown.clone()).is_err(), "{unknown}");
    }
}

#[test]
fn parts_are_written_only_where_there_are_some() {
    let plain = Score::right_or_wrong(true, None);
    assert_eq!(serde_json::to_value(&plain).unwrap(), json!({"score": 1.0, "acc": 1.0, "pred": null}));
    let parted = Score { parts: [("a".into(), 0.5)].into(), ..plain };
    let written = serde_json::to_value(&parted).unwrap();
    assert_eq!(written["parts"], json!({"a": 0.5}));
    assert_eq!(serde_json::from_value::<Score>(written).unwrap(), parted);
}
