use crate::scorer::math_equiv::{MathEquiv, Reason};
use crate::scorer::{ScoreInput, Scorer};

#[test]
fn the_first_place_with_an_answer_counts() {
    for (response, answer) in [
        ("so \\boxed{1} or \\boxed{\\frac{1}{2}}, Answer: 3", Some("\\frac{1}{2}")),
        ("Answer: 3\nor $4$\n5", Some("3")),
        ("Answer: 3\nno,\nanswer : 4", Some("4")),
        ("**Answer:** $\\frac12$", Some("\\frac12")),
        ("Final Answer: The final answer is $7$. I hope it is correct.", Some("7")),
        ("The answer is 42. I hope so.", Some("42")),
        ("The answer is: 42", Some("42")),
        ("The answer is 42. But the answer isn't 5.", Some("42")),
        ("the answer is **42**", Some("42")),
        ("the answer is$7$", Some("7")),
        ("Answer:\n\n  east \n", Some("east")),
        ("He has 3*4 = 12.\n#### 12", Some("12")),
        ("first $1$ then $x+1$ done", Some("x+1")),
        ("so $$x=2$$", Some("x=2")),
        ("It costs $5 in all.", Some("5")),
        ("we get 1 and 2\nso -3.50 is it\n\n", Some("-3.50")),
        ("about 1,234/5 of 10%", Some("10%")),
        ("from 3-5", Some("5")),
        ("I do not know.", None),
        ("", None),
        ("\\boxed{unclosed, answer is 9", Some("9")),
    ] {
        assert_eq!(MathEquiv::extract(response), answer, "{response}");
    }
}

fn explain(response: &str, ground_truth: &str) -> (f64, Option<String>, Reason) {
    let input = ScoreInput { response, ground_truth, data_source: "", extra: None };
    let score = MathEquiv.score(&input).unwrap();
    let verdict = MathEquiv.explain(&input);
    assert_eq!(score.score, f64::from(verdict.is_equal));
    assert_eq!(score.acc, score.score);
    assert_eq!(score.reason, Some(verdict.reason));
    (score.score, score.pred, verdict.reason)
}

#[test]
fn the_ground_truth_may_be_fenced() {
    for truth in ["12", "$12$", "\\boxed{12}", "so $x = \\boxed{12}$.", "3*4=<<3*4=12>>12\n#### 12", "12.0"] {
        assert_eq!(explain("Answer: $12$", truth).0, 1.0, "{truth}");
        assert_eq!(explain("Answer: $13$", truth).0, 0.0, "{truth}");
    }
}

#[test]
fn a_score_names_the_answer_and_the_reason() {
    let found = (1.0, Some("\\frac{1}{2}".to_owned()), Reason::SameExactValue);
    assert_eq!(explain("so $\\boxed{\\frac{1}{2}}$", "0.5"), found);
    assert_eq!(explain("no idea", "0.5"), (0.0, None, Reason::NoAnswer));
}
