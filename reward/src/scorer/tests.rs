use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::invariants;

mod any_text;
mod form;

fn score_of(scorer: &dyn Scorer, response: &str, ground_truth: &str) -> Score {
    let input = ScoreInput { response, ground_truth, data_source: "math_dapo", extra: None };
    scorer.score(&input).unwrap()
}

fn built(config: serde_json::Value) -> Arc<dyn Scorer> {
    serde_json::from_value::<ScorerConfig>(config).unwrap().build().unwrap()
}

#[test]
fn names_and_scorers_agree() {
    for name in NAMES.split(", ") {
        match ScorerConfig::from_name(name) {
            Ok(config) => assert_eq!(config.build().unwrap().name(), name),
            Err(RewardError::NeedsOptions { scorer, .. }) => assert_eq!(scorer, name),
            Err(error) => panic!("{error}"),
        }
    }
    let error = ScorerConfig::from_name("maths").err().unwrap().to_string();
    assert!(error.contains("expected one of: math_dapo"), "{error}");
}

#[test]
fn an_unknown_source_is_an_error_that_lists_the_known_ones() {
    let input = ScoreInput { response: "", ground_truth: "", data_source: "weather", extra: None };
    let error = Routed::default().score(&input).unwrap_err().to_string();
    assert!(error.contains("\"weather\"") && error.contains("openai/gsm8k"), "{error}");
}

#[test]
fn the_last_answer_counts_and_it_must_be_near_the_end() {
    let scorer = MathDapo::default();
    assert_eq!(score_of(&scorer, "Answer: 1\nanswer : 2", "2").score, 1.0);
    let far = format!("Answer: 2\n{}", "x".repeat(300));
    assert_eq!(score_of(&scorer, &far, "2").score, -1.0);
}

#[test]
fn the_variant_of_2026_falls_back_to_the_box() {
    let scorer = MathDapo { variant: Variant::V2026, strict_box: false };
    assert_eq!(score_of(&scorer, "so \\boxed{7}", "7").score, 1.0);
    assert_eq!(score_of(&MathDapo::default(), "so \\boxed{7}", "7").score, -1.0);
    assert_eq!(score_of(&scorer, "Answer: 8, no, \\boxed{7}\n", "7").score, -1.0, "an answer comes first");
    let far = format!("\\boxed{{7}}{}", ".".repeat(100));
    assert_eq!(score_of(&scorer, &far, "7").score, -1.0);
    assert_eq!(score_of(&scorer, "\\boxed{7 }", "7").score, -1.0, "a box has no normal form");
    assert_eq!(score_of(&scorer, "\\boxed{7 }", "7").pred.as_deref(), Some("7 "));
}

#[test]
fn an_answer_that_reads_invalid_is_none_to_the_variant_of_2026() {
    let response = "\\boxed{7}\nAnswer: [INVALID]";
    let scorer = MathDapo { variant: Variant::V2026, strict_box: false };
    assert_eq!(score_of(&scorer, response, "7").pred.as_deref(), Some("7"));
    assert_eq!(score_of(&MathDapo::default(), response, "7").pred.as_deref(), Some("[INVALID]"));
}

#[test]
fn a_strict_box_compares_text() {
    let scorer = MathDapo { variant: Variant::V2025, strict_box: true };
    assert_eq!(score_of(&scorer, "Answer: 7, \\boxed{{7}}", "{7}").score, 1.0);
    assert_eq!(score_of(&scorer, "\\boxed{7 }", "7").score, -1.0);
    assert_eq!(score_of(&scorer, "Answer: 7", "7").pred, None);
}

#[test]
fn gsm8k_takes_the_last_number() {
    let (strict, flexible) = (Gsm8k::default(), Gsm8k { method: Gsm8kMethod::Flexible });
    assert_eq!(score_of(&strict, "#### 5\n#### 1,234", "1234").score, 1.0);
    assert_eq!(score_of(&strict, "1234", "1234").pred, None);
    assert_eq!(score_of(&flexible, "about -7 or 12 .", "12").score, 1.0);
    assert_eq!(score_of(&flexible, ". .", "12").pred.as_deref(), Some("."));
}

#[test]
fn math_compares_normal_forms() {
    for (answer, truth) in [
        ("\\frac12", "1/2"),
        ("0.5", "\\dfrac{1}{2}"),
        ("x = .5", "\\tfrac12"),
        ("\\sqrt3", "\\sqrt{3}"),
        ("90^\\circ", "90"),
        ("5\\text{ cm}", "5"),
    ] {
        assert_eq!(score_of(&Math, &format!("\\boxed{{{answer}}}"), truth).score, 1.0, "{answer}");
    }
    assert_eq!(score_of(&Math, "\\boxed{-0/1}", "\\frac{0}{1}").score, 0.0);
    assert_eq!(score_of(&Math, "no box", "1").pred, None);
}

#[test]
fn sources_are_routed_as_verl_routes_them() {
    let score_from = |data_source, response| {
        let input = ScoreInput { response, ground_truth: "7", data_source, extra: None };
        Routed::default().score(&input).unwrap().score
    };
    assert_eq!(score_from("openai/gsm8k", "#### 7"), 1.0);
    assert_eq!(score_from("HuggingFaceH4/MATH-500", "\\boxed{7}"), 1.0);
    assert_eq!(score_from("aime_2024", "Answer: 7"), 1.0);
    assert_eq!(score_from("math_dapo", "no answer"), -1.0);
    assert_eq!(score_from("searchR1_nq", "<answer>the 7.</answer>"), 1.0);
}

#[test]
fn a_source_without_an_exact_scorer_says_what_to_configure() {
    for (data_source, words) in [
        ("numina_amc_aime", "math_equiv"),
        ("hiyouga/geometry3k", "math_equiv"),
        ("codecontests", "reward.code"),
        ("taco", "reward.code"),
    ] {
        let input = ScoreInput { response: "", ground_truth: "", data_source, extra: None };
        let error = Routed::default().score(&input).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(data_source) && text.contains(words), "{text}");
        assert_eq!(error.class(), crate::ErrorClass::Client);
    }
}

#[test]
fn options_are_read_and_unknown_ones_refused() {
    let read = serde_json::from_str::<ScorerConfig>;
    let dapo = read(r#"{"scorer": "math_dapo", "variant": "2026"}"#).unwrap();
    assert_eq!(dapo, ScorerConfig::MathDapo { variant: Variant::V2026, strict_box: false });
    let routed = read(r#"{"scorer": "routed", "variant": "2026"}"#).unwrap().build().unwrap();
    assert_eq!(
        score_of(routed.as_ref(), "\\boxed{7}", "7").score,
        1.0,
        "options reach the scorer of the source"
    );
    for unknown in [r#"{"scorer": "math", "variant": "2026"}"#, r#"{"scorer": "routed", "x": 1}"#] {
        assert!(read(unknown).is_err(), "{unknown}");
    }
}

fn scorers() -> Vec<Arc<dyn Scorer>> {
    vec![
        Arc::new(MathDapo::default()),
        Arc::new(MathDapo { variant: Variant::V2026, strict_box: false }),
        Arc::new(MathDapo { variant: Variant::V2025, strict_box: true }),
        Arc::new(Gsm8k { method: Gsm8kMethod::Strict }),
        Arc::new(Gsm8k { method: Gsm8kMethod::Flexible }),
        Arc::new(Math),
        Arc::new(MathEquiv),
    ]
}

#[test]
fn adversarial_latex_takes_linear_time() {
    let nasty = ["{", "}", "\\boxed{", "\\frac", "\\sqrt", "$", "Answer:", "\\text{", " ", "#### -", "="];
    for piece in nasty {
        let pieces = piece.repeat((1 << 20) / piece.len());
        let texts = [
            format!("\\boxed{{{pieces}}}"),
            format!("\\boxed {pieces}"),
            format!("Answer: {pieces}"),
            pieces,
        ];
        for (scorer, text) in scorers().iter().flat_map(|scorer| texts.iter().map(move |text| (scorer, text)))
        {
            let started = stopwatch();
            let score = score_of(scorer.as_ref(), text, text);
            let took = started();
            invariants::score_is_sound(&score).unwrap();
            // The limit is far above linear time and far below quadratic time, for debug builds on a loaded
            // machine.
            assert!(took < Duration::from_secs(4), "{} took {took:?} on {piece:?}", scorer.name());
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "real work is timed, and no runtime is there to pause")]
fn stopwatch() -> impl Fn() -> Duration {
    let started = std::time::Instant::now();
    move || started.elapsed()
}

proptest! {
    #[test]
    fn any_text_gets_the_same_sound_score_twice(response in "(Answer:|\\\\boxed\\{|[ -~]|\\n|\\}|.){0,80}", truth in ".{0,12}") {
        for scorer in scorers() {
            let first = score_of(scorer.as_ref(), &response, &truth);
            prop_assert_eq!(invariants::score_is_sound(&first), Ok(()));
            prop_assert_eq!(&first, &score_of(scorer.as_ref(), &response, &truth));
        }
    }

    #[test]
    fn only_the_tail_counts(head in ".{0,40}", response in "(Answer: ?|#### |\\\\boxed\\{|[ -~]|\\n|\\}|é){300,400}", truth in "[0-9]{1,2}") {
        for scorer in scorers() {
            let Some(tail) = scorer.tail_code_points() else { continue };
            let whole = format!("{head}{response}");
            let cut = crate::python_text::tail(&whole, tail);
            prop_assert_eq!(score_of(scorer.as_ref(), &whole, &truth), score_of(scorer.as_ref(), cut, &truth));
        }
    }

    #[test]
    fn an_answer_in_the_asked_form_is_right(number in any::<i64>()) {
        let response = format!("So we get\nAnswer: ${number}$");
        prop_assert_eq!(score_of(&MathDapo::default(), &response, &number.to_string()).acc, 1.0);
    }
}
