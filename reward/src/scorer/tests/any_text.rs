//! Tests that any text gets a sound and deterministic score in linear time.

use super::*;

/// All scorers of form and of plain comparison, and a rubric of all of them, each with a ground truth that it
/// accepts.
fn scorers() -> Vec<(Arc<dyn Scorer>, &'static str)> {
    let schema = json!({"type": ["object", "array"], "required": ["a"], "properties": {"a": {"pattern": "^a*$"}},
                        "additionalProperties": {"enum": [[1, 2], {"b": null}]}, "items": {"minLength": 2}});
    let parts = [
        json!({"scorer": "choice"}),
        json!({"scorer": "exact_match", "ignore_case": true, "ignore_punctuation": true, "after": "Answer:"}),
        json!({"scorer": "regex", "pattern": r"(?s).*Answer:\s*([A-J ]+)", "group": 1}),
        json!({"scorer": "json_schema", "schema": schema}),
        json!({"scorer": "json_schema", "schema": {"anyOf": [{"items": {"$ref": "#"}}, {"patternProperties": {"a": false}}],
               "uniqueItems": true}}),
        json!({"scorer": "format"}),
        json!({"scorer": "format", "tags": ["think", "answer"], "trailing_answer": false}),
        json!({"scorer": "length", "target": 10, "max": 1000, "ramp": "cosine"}),
        json!({"scorer": "repetition", "n": 3}),
        json!({"scorer": "repetition", "n": 8, "unit": "code_points", "factor": 2.0}),
    ];
    let named = parts.iter().enumerate().map(|(index, part)| {
        let mut named = part.clone();
        named["name"] = json!(format!("part {index}"));
        named["weight"] = json!(0.5);
        named
    });
    let named: Vec<serde_json::Value> = named.collect();
    let rubric = json!({"scorer": "rubric", "parts": named, "acc": "part 1"});
    let all = parts.into_iter().chain([rubric]);
    let mut scorers: Vec<_> = all.map(|config| (built(config), "C")).collect();
    scorers.push((built(json!({"scorer": "json_schema"})), r#"{"type": "object"}"#));
    scorers
}

#[test]
fn adversarial_text_takes_linear_time() {
    /// Bytes of a text, which are enough to detect quadratic time.
    const BYTES: usize = 1 << 17;
    let nasty = [
        "<think>",
        "</think>",
        "<answer></answer>",
        "```json",
        "```json\n",
        "[",
        "{\"a\":",
        "[1,",
        "\"",
        "\\boxed{",
        "\\boxed{\\text{C",
        "answer",
        "answer is",
        "Answer: ",
        "Answer: a b",
        " ",
        "\n",
        "C",
        "é",
        "9",
        "a b ",
        "word ",
    ];
    for piece in nasty {
        let pieces = piece.repeat(BYTES / piece.len());
        let texts = [format!("```json\n[{pieces}"), format!("<think>{pieces}</think>{pieces}\nC"), pieces];
        for (scorer, truth) in &scorers() {
            for text in &texts {
                let started = stopwatch();
                let score = score_of(scorer.as_ref(), text, truth);
                let took = started();
                invariants::score_is_sound(&score).unwrap();
                // The limit is far above linear time and far below quadratic time, for debug builds on a
                // loaded machine.
                assert!(took < Duration::from_secs(4), "{} took {took:?} on {piece:?}", scorer.name());
            }
        }
    }
}

proptest! {
    #[test]
    fn any_text_gets_the_same_sound_score_twice(
        response in "(Answer:|answer is|\\\\boxed\\{|</?think>|</?answer>|```json|```|\\{\"a\": ?|[\\[\\],{}]|[ -~]|\\n|[A-K]|.){0,60}",
    ) {
        for (scorer, truth) in scorers() {
            let first = score_of(scorer.as_ref(), &response, truth);
            prop_assert_eq!(invariants::score_is_sound(&first), Ok(()));
            prop_assert_eq!(&first, &score_of(scorer.as_ref(), &response, truth), "{}", scorer.name());
        }
    }

    #[test]
    fn any_ground_truth_gets_a_score_or_an_error_of_the_client(truth in "(\\{\"type\": ?|\"integer\"\\}|[ -~]|[A-J]|.){0,30}") {
        for scorer in ["choice", "json_schema"].map(|name| built(json!({"scorer": name}))) {
            let input = ScoreInput { response: "5", ground_truth: &truth, data_source: "", extra: None };
            match scorer.score(&input) {
                Ok(score) => prop_assert_eq!(invariants::score_is_sound(&score), Ok(())),
                Err(error) => prop_assert_eq!(error.class(), crate::ErrorClass::Client),
            }
        }
    }

    #[test]
    fn documents_that_are_written_are_read(numbers in prop::collection::vec(any::<i32>(), 0..8), word in ".{0,12}") {
        let document = json!({"numbers": numbers, "word": word});
        let scorer = built(json!({"scorer": "json_schema", "schema": {"const": document}}));
        for response in [document.to_string(), format!("So:\n```json\n{document:#}\n```\n")] {
            prop_assert_eq!(score_of(scorer.as_ref(), &response, "").acc, 1.0, "{}", response);
        }
    }

    #[test]
    fn a_letter_in_every_asked_form_is_read(letter in "[A-Ja-j]", words in "[ -@\\[-`{-~\\n]{0,20}") {
        for response in [format!("{words}\nAnswer: {letter}"), format!("{words}\nso \\boxed{{{letter}}}"), format!("{words}\n({letter})")] {
            let score = score_of(&Choice, &response, &letter);
            prop_assert_eq!(score.acc, 1.0, "{}", response);
        }
    }

    #[test]
    fn a_longer_response_never_scores_more_and_new_words_have_no_penalty(count in 0_usize..2000, target in 0_usize..1000, beyond in 0_usize..1000, n in 1_usize..9) {
        for ramp in [Ramp::Linear, Ramp::Cosine] {
            let length = Length { target, max: target + beyond, ramp };
            prop_assert!(length.of(count + 1) <= length.of(count));
        }
        let text: String = (0..count / 8).map(|number| format!("{number} ")).collect();
        let repetition = Repetition { n, unit: RepetitionUnit::Words, factor: 1.0 };
        prop_assert_eq!(repetition.share(&text), 0.0);
        let twice = repetition.share(&text.repeat(2));
        prop_assert!(twice <= 0.5, "share {}", twice);
    }
}
