use serde_json::value::RawValue;

use super::is_expected;

fn holds(result: &str, expected: &str) -> bool {
    let raw = |json: &str| RawValue::from_string(json.to_owned()).unwrap();
    is_expected(&raw(result), &raw(expected))
}

#[test]
fn values_are_equal_as_in_python() {
    for (result, expected) in [
        ("1", "1"),
        ("1", "1.0"),
        ("1e2", "100"),
        ("true", "1"),
        ("-0", "0"),
        ("100000000000000000000000000000001", "100000000000000000000000000000001"),
        ("\"a\\u0062\"", "\"ab\""),
        ("null", "null"),
        ("[1, [2, \"x\"]]", "[1,[2,\"x\"]]"),
        ("{\"a\": 1, \"b\": [2]}", "{\"b\":[2],\"a\":1.0}"),
        ("[]", "[]"),
        ("5", "[5]"),
        ("[1, 2]", "[[1, 2]]"),
    ] {
        assert!(holds(result, expected), "{result} {expected}");
    }
    for (result, expected) in [
        ("1", "2"),
        ("1", "\"1\""),
        ("100000000000000000000000000000001", "100000000000000000000000000000002"),
        ("0.1", "0.10000000000000002"),
        ("null", "0"),
        ("null", "false"),
        ("[1, 2]", "[1]"),
        ("[1, 2]", "[2, 1]"),
        ("{\"a\": 1}", "{\"a\": 1, \"b\": 2}"),
        ("{\"a\": 1}", "{\"b\": 1}"),
        ("1", "[1, 2]"),
        ("[5]", "5"),
        ("\"a\"", "\"A\""),
    ] {
        assert!(!holds(result, expected), "{result} {expected}");
    }
}

#[test]
fn depth_has_an_end() {
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert!(holds(&deep(60), &deep(60)));
    assert!(!holds(&deep(100_000), &deep(100_000)));
}
