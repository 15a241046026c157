use super::{Choice, chosen};
use crate::{ErrorClass, ScoreInput, Scorer};

#[test]
fn every_form_is_read() {
    for response in [
        "\\boxed{C}",
        "\\boxed{ c }",
        "so \\boxed{\\text{C}}",
        "\\boxed{(C).} as said",
        "Answer: C",
        "ANSWER : c",
        "**Answer:** C",
        "**Answer: C**",
        "Answer: (C) because of the heat",
        "Answer: C because of the heat",
        "Answer:\nC\nThat is all",
        "the answer is (C)",
        "The correct answer is option c.",
        "The answer is: \"c\" and nothing else",
        "Final answer: $C$",
        "the answer is (c) the third",
        "the answer is c) the third",
        "the answer is option c as said",
        "I think\n\nC",
        "I think\n(c).\n\n",
        "hence\n**C**",
    ] {
        assert_eq!(chosen(response), Some('C'), "{response:?}");
    }
}

#[test]
fn text_that_is_not_a_choice_is_ignored() {
    for response in [
        "",
        "\\boxed{42}",
        "\\boxed{K}",
        "\\boxed{AB}",
        "Answer: K",
        "Answer: Cat",
        "Answer: CÉ",
        "the answer is a prime number",
        "the answer is not C, I fear",
        "I choose C",
        "So my answer is: I chose B because of the heat",
        "the answer is I think B",
        "C\nor something else",
    ] {
        assert_eq!(chosen(response), None, "{response:?}");
    }
}

#[test]
fn the_last_one_counts_whatever_its_form() {
    assert_eq!(chosen("\\boxed{A} no, the answer is B"), Some('B'));
    assert_eq!(chosen("Answer: B, rather \\boxed{A}"), Some('A'));
    assert_eq!(chosen("\\boxed{A} Answer: B\nD"), Some('D'));
    assert_eq!(chosen("Answer: B\n\\boxed{42}"), Some('B'));
    assert_eq!(chosen("answer: answer: E"), Some('E'));
    let explained = "\\boxed{B}\nSo my answer is: I chose B because of the heat.";
    assert_eq!(chosen(explained), Some('B'), "a pronoun is no letter");
    for one in
        ["Answer: I", "Answer: (I) because", "Answer: I. It is", "answer: option I because", "\\boxed{I}"]
    {
        assert_eq!(chosen(one), Some('I'), "{one:?}");
    }
}

#[test]
fn the_ground_truth_is_a_letter() {
    let score = |ground_truth| {
        Choice.score(&ScoreInput { response: "Answer: J", ground_truth, data_source: "", extra: None })
    };
    for truth in ["J", "j", "(J)", " J. "] {
        assert_eq!(score(truth).unwrap().acc, 1.0, "{truth:?}");
    }
    assert_eq!(score("A").unwrap().pred.as_deref(), Some("J"));
    for truth in ["", "K", "42", "AB"] {
        let error = score(truth).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Client);
        assert!(error.to_string().contains("ground_truth"), "{error}");
    }
}
