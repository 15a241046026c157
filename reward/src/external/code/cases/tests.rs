use super::{CASES_MAX, Case, read};
use crate::{ErrorClass, RewardError};

/// Formats each case in one short line.
fn shown(ground_truth: &str) -> Vec<String> {
    let line = |case: Case| match case {
        Case::Program { input, output } => format!("{input:?} > {output:?}"),
        Case::Call { name, arguments, expected } => {
            format!("{name}{} = {}", arguments.get(), expected.get())
        }
        Case::Check(tests) => tests,
    };
    read(ground_truth).unwrap().into_iter().map(line).collect()
}

#[test]
fn every_shape_is_read() {
    let cases: &[(&str, &[&str])] = &[
        (r#"{"inputs": ["1\n", "2"], "outputs": ["a", "b"]}"#, &[r#""1\n" > "a""#, r#""2" > "b""#]),
        (
            r#"{"inputs": [["1 2", "3"], 4], "outputs": [["x", 5], -6.5]}"#,
            &[r#""1 2\n3" > "x\n5""#, r#""4" > "-6.5""#],
        ),
        (r#"{"inputs": [""], "outputs": [""], "fn_name": null, "more": {}}"#, &[r#""" > """#]),
        (
            r#"{"inputs": [[1, "a"], 7], "outputs": [[3], "b"], "fn_name": "f"}"#,
            &[r#"f[1, "a"] = [3]"#, r#"f[7] = "b""#],
        ),
        (
            r#"{"inputs": ["[1,2]\n\"x\"", "5"], "outputs": ["[true]", "plain text"], "fn_name": "f"}"#,
            &[r#"f[[1,2],"x"] = [true]"#, r#"f[5] = "plain text""#],
        ),
        (r#"{"functional": "check(f)"}"#, &["check(f)"]),
        (r#"["assert f(1) == 2", " assert f(2) == 3"]"#, &["assert f(1) == 2", " assert f(2) == 3"]),
        (r#"["def check(g): assert g()", "check(f)"]"#, &["def check(g): assert g()\ncheck(f)"]),
        ("\nassert f(1) == 2\nassert f(2) == 3\n", &["assert f(1) == 2\nassert f(2) == 3"]),
        (r#""assert f(1) == \"x\"""#, &["assert f(1) == \"x\""]),
        (r#""{\"functional\": \"x\"}""#, &["x"]),
        (
            r#"[{"input": "1", "output": "2", "testtype": "stdin"}, {"input": "3", "output": "4"}]"#,
            &[r#""1" > "2""#, r#""3" > "4""#],
        ),
        (
            r#"[{"input": "1\n2", "output": "3", "testtype": "functional", "metadata": {"func_name": "add"}}]"#,
            &["add[1,2] = 3"],
        ),
    ];
    for (ground_truth, wanted) in cases {
        assert_eq!(shown(ground_truth), *wanted, "{ground_truth}");
    }
}

#[test]
fn other_shapes_are_errors_with_a_reason() {
    let many = format!("{{\"inputs\": [{0}], \"outputs\": [{0}]}}", vec!["1"; CASES_MAX + 1].join(","));
    for (ground_truth, word) in [
        ("", "expected unit tests"),
        ("42", "expected unit tests"),
        ("{", "expected unit tests"),
        ("{\"inputs\": []}", "expected unit tests"),
        ("{\"inputs\": [], \"outputs\": []}", "at least one test"),
        ("[]", "at least one test"),
        ("{\"inputs\": [\"\"], \"outputs\": []}", "inputs=1 outputs=0"),
        ("{\"inputs\": [{}], \"outputs\": [\"\"]}", "expected a text"),
        ("{\"inputs\": [[[1]]], \"outputs\": [\"\"]}", "expected a text"),
        ("{\"inputs\": [\"x y\"], \"outputs\": [1], \"fn_name\": \"f\"}", "to be JSON"),
        ("[{\"input\": \"1\", \"output\": \"2\", \"testtype\": \"functional\"}]", "func_name"),
        ("[{\"input\": \"1\", \"output\": \"2\", \"testtype\": \"other\"}]", "found \"other\""),
        ("[\"assert 1\", 2]", "expected unit tests"),
        (r#"["check(f)", "f(1)"]"#, "expected unit tests"),
        (r#""\"assert f(1) == 2\"""#, "at most 2 times"),
        (many.as_str(), "at most"),
    ] {
        let error = read(ground_truth).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Client);
        let RewardError::Invalid { what, value, reason } = error else { panic!("{ground_truth}") };
        assert_eq!(what, "ground_truth");
        assert!(value.chars().count() <= 200 && reason.contains(word), "{ground_truth}: {reason}");
    }
}
