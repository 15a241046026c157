use proptest::prelude::*;
use regex::Regex;

use super::*;
use crate::python_text::SPACES;

/// The regular expression, with Python's definition of white space.
fn expression() -> Regex {
    let ranges = SPACES.iter().map(|(first, last)| format!(r"\x{{{first:X}}}-\x{{{last:X}}}"));
    let space = ranges.collect::<String>();
    Regex::new(&format!(r"(?i)Answer[{space}]*:[{space}]*([^\n]+)")).unwrap()
}

#[test]
fn each_case_by_hand() {
    for (text, answer) in [
        ("Answer: 1\nanswer : 2", Some("2")),
        ("Answer: Answer: 3", Some("Answer: 3")),
        ("aNSWER\u{1c}\n:\n\n 4 \n5", Some("4 ")),
        ("An\u{17f}wer:6", Some("6")),
        ("Answer: \t\n\n", Some("\t")),
        ("Answer:\n\n", None),
        ("answers: 7, nswer: 8 :", None),
    ] {
        assert_eq!(last_answer(text), answer, "{text:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn the_marker_is_its_expression(text in "(Answer|aNswer|An\u{17f}wer|answe|r|:|:|\n| |\t|\u{1c}|\u{3000}|é|5){0,24}") {
        let expression = expression();
        let wanted = expression.captures_iter(&text).last().map(|captures| captures.get(1).unwrap().as_str());
        prop_assert_eq!(last_answer(&text), wanted);
    }
}
