//! The scorer for rows of the sources `searchR1_*` (Jin et al. 2025, "Search-R1"), in which a model searches
//! for its answer. As in verl, answers are normalised and must then match exactly.
//!
//! The answer is the content of the last `<answer>..</answer>`. It is right when its normal form equals the
//! normal form of one of the ground truths. A normal form is in lower case, without ASCII punctuation,
//! without the words "a", "an" and "the", and with single spaces. A right answer scores 0.25 if the response
//! has more than ten opening tags or more than ten closing tags.
//!
//! The ground truth is the JSON `{"target": ..}` with a text or a list of texts, or a JSON list of texts. Any
//! other text is used as it is.
//!
//! # Deliberately absent
//! Python's `\b` next to combining marks is not reproduced: words here consist of the letters and digits of
//! Rust.

use memchr::memmem;
use serde_json::Value;

use super::{Score, ScoreInput};
use crate::python_text::{is_space, strip};

const OPEN: &str = "<answer>";
const CLOSE: &str = "</answer>";
/// Maximum number of opening tags, and of closing tags, in a response without a reduced score.
const TAGS_MAX: usize = 10;
const SCORE_WITH_MANY_TAGS: f64 = 0.25;
const ARTICLES: &[&str] = &["a", "an", "the"];

/// Scores 1, 0.25 or 0; `acc` is 1 for a right answer and otherwise 0.
pub(super) fn score(input: &ScoreInput<'_>) -> Score {
    let Some(answer) = last_answer(input.response) else { return Score::default() };
    let found = normal(answer);
    let is_right = truths(input.ground_truth).iter().any(|truth| normal(truth) == found);
    let has_many = |tag: &str| memmem::find_iter(input.response.as_bytes(), tag).nth(TAGS_MAX).is_some();
    let mut score = Score::right_or_wrong(is_right, Some(answer.to_owned()));
    if is_right && (has_many(OPEN) || has_many(CLOSE)) {
        score.score = SCORE_WITH_MANY_TAGS;
    }
    score
}

/// The content of the last matching pair of tags, matched from the left.
fn last_answer(response: &str) -> Option<&str> {
    let mut last = None;
    let mut rest = response;
    while let Some((_, behind)) = rest.split_once(OPEN) {
        let Some((inside, behind)) = behind.split_once(CLOSE) else { break };
        last = Some(inside);
        rest = behind;
    }
    last.map(strip)
}

fn truths(ground_truth: &str) -> Vec<String> {
    let as_it_is = || vec![ground_truth.to_owned()];
    let Ok(value) = serde_json::from_str::<Value>(ground_truth) else { return as_it_is() };
    let target = match &value {
        Value::Object(fields) => fields.get("target"),
        list => Some(list).filter(|list| list.is_array()),
    };
    match target {
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(texts)) => texts.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => as_it_is(),
    }
}

fn normal(text: &str) -> String {
    let mut plain = text.to_lowercase();
    plain.retain(|c| !c.is_ascii_punctuation());
    let mut without_articles = String::with_capacity(plain.len());
    let mut rest = plain.as_str();
    while let Some(next) = rest.chars().next() {
        let letters = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
        let (part, behind) = rest.split_at(if letters > 0 { letters } else { next.len_utf8() });
        without_articles.push_str(if ARTICLES.contains(&part) { " " } else { part });
        rest = behind;
    }
    let words = without_articles.split(is_space).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(response: &str, ground_truth: &str) -> (f64, f64, Option<String>) {
        let score = score(&ScoreInput { response, ground_truth, data_source: "searchR1_nq", extra: None });
        (score.score, score.acc, score.pred)
    }

    #[test]
    fn normal_forms_are_compared() {
        for (answer, truth) in [
            ("The  Beatles!", "beatles"),
            ("an apple, a day", "Apple Day"),
            ("theatre", "Theatre"),
            ("U.S.A.", "usa"),
            ("the", "a"),
            ("É", "é"),
        ] {
            assert_eq!(normal(answer), normal(truth), "{answer:?} {truth:?}");
        }
        assert_ne!(normal("athens"), normal("thens"));
        assert_ne!(normal("New York"), normal("NewYork"));
    }

    #[test]
    fn the_last_answer_is_any_of_the_truths() {
        let truth = r#"{"target": ["Paris", "City of Light"]}"#;
        for (response, score) in [
            ("<answer>Rome</answer> no, <answer> the city of light </answer>", 1.0),
            ("<answer>Paris</answer><answer>Rome</answer>", 0.0),
            ("<answer>Paris", 0.0),
            ("Paris", 0.0),
            ("<answer>London</answer> <answer>Paris<answer></answer>", 0.0),
        ] {
            let found = scored(response, truth);
            assert_eq!((found.0, found.1), (score, score), "{response}");
        }
        let right = "<answer>Paris</answer>";
        for truth in ["Paris", r#"["Paris"]"#, r#"{"target": "paris"}"#] {
            assert_eq!(scored(right, truth), (1.0, 1.0, Some("Paris".to_owned())), "{truth}");
        }
        assert_eq!(scored("<answer>42</answer>", "42").0, 1.0);
        assert_eq!(scored("<answer>no</answer>", r#"{"target": []}"#).0, 0.0);
    }

    #[test]
    fn too_many_tags_cost_most_of_the_score() {
        let many = "<answer>Paris</answer>".repeat(TAGS_MAX + 1);
        assert_eq!(scored(&many, "Paris"), (0.25, 1.0, Some("Paris".to_owned())));
        let some = "<answer>Paris</answer>".repeat(TAGS_MAX);
        assert_eq!(scored(&some, "Paris").0, 1.0);
    }
}
