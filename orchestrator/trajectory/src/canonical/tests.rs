use proptest::prelude::*;
use serde_json::{Value, json};

use super::canonical;

fn of(json: &str) -> String {
    canonical(&serde_json::from_str(json).unwrap())
}

#[test]
fn one_text_for_all_serialisations() {
    let expected = r#"{"a":[1,2.5,-3],"b":"x\ny","c":true}"#;
    assert_eq!(of(r#"{"c": true, "b": "x\u000ay", "a": [1.0, 2.50, -3e0], "d": null}"#), expected);
    assert_eq!(of(expected), expected);
    assert_eq!(of("[null]"), "[null]");
    assert_eq!(of(r#""\u001f\"\\/é""#), "\"\\u001f\\\"\\\\/é\"");
    assert_eq!(of("18446744073709551615"), "18446744073709551615");
    assert_eq!(of("1e300"), of("1.0e+300"));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e6..1e6_f64).prop_map(Value::from),
        "\\PC{0,8}|[\\x00-\\x7f]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-c\"\\n]{0,3}", inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn the_text_is_json_of_one_line_and_keeps_the_value(value in any_json()) {
        let text = canonical(&value);
        let read: Value = serde_json::from_str(&text).unwrap();
        prop_assert!(!text.contains('\n'));
        prop_assert_eq!(canonical(&read), text);
    }

    #[test]
    fn different_texts_of_a_string_member_stay_different(one in "\\PC{0,8}", other in "\\PC{0,8}") {
        let [of_one, of_other] = [&one, &other].map(|content| canonical(&json!({ "content": content })));
        prop_assert_eq!(one == other, of_one == of_other);
    }
}
