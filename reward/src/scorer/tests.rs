use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::invariants;

fn score_of(scorer: &dyn Scorer, response: &str, ground_truth: &str) -> Score {
    let input = ScoreInput { response, ground_truth, data_source: "math_dapo", extra: None };
    scorer.score(&input).unwrap()
}

#[test]
fn names_and_scorers_agree() {
    for name in ["math_dapo", "gsm8k", "math", "routed"] {
        assert_eq!(ScorerConfig::from_name(name).unwrap().build().name(), name);
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

fn scorers() -> Vec<Arc<dyn Scorer>> {
    vec![
        Arc::new(MathDapo::default()),
        Arc::new(MathDapo { variant: Variant::V2026, strict_box: false }),
        Arc::new(MathDapo { variant: Variant::V2025, strict_box: true }),
        Arc::new(Gsm8k { method: Gsm8kMethod::Strict }),
        Arc::new(Gsm8k { method: Gsm8kMethod::Flexible }),
        Arc::new(Math),
    ]
}

#[test]
fn adversarial_latex_takes_linear_time() {
    let nasty = ["{", "}", "\\boxed{", "\\frac", "\\sqrt", "$", "Answer:", "\\text{", " ", "#### -", "="];
    for piece in nasty {
        let text = piece.repeat((1 << 20) / piece.len());
        for scorer in scorers() {
            let started = tokio_free_clock();
            let score = score_of(scorer.as_ref(), &text, &text[..64]);
            let took = started();
            invariants::score_is_sound(&score).unwrap();
            // Debug builds on a loaded machine: far above linear time's cost, far below quadratic's.
            assert!(took < Duration::from_secs(4), "{} took {took:?} on {piece:?}", scorer.name());
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "real work is timed, and no runtime is there to pause")]
fn tokio_free_clock() -> impl Fn() -> Duration {
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
