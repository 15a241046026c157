use proptest::prelude::*;
use serde_json::Value;

use super::*;

/// The text after the last element. It is long enough to load a block at the end of that element.
const REST: &[u8] = &[b'['; BLOCK_BYTES];

fn run_of(elements: &str) -> usize {
    run(&[elements.as_bytes(), REST].concat())
}

#[test]
fn the_forms_of_engines_are_skipped_to_their_last_comma() {
    for elements in [
        r#""a","","a longer one","\"","\\","é\u00e9\n","#,
        "0,12,123456789012,-1,-10.00468635559082,1.5e-07,1E+5,null,",
        r#"{"token":-10.5},{},{"a\"b":"c","d":null},{"x":1,"y":2.5e-05},"#,
    ] {
        assert_eq!(run_of(elements), elements.len(), "{elements}");
    }
    assert_eq!(run_of(r#""a",1 ,2,"#), 4);
    assert_eq!(run_of(r#"1,{"a":[1]},"#), 2);
    assert_eq!(run_of("1,2"), 2);
}

#[test]
fn what_is_no_json_is_left() {
    for element in [
        "",
        ",",
        "]",
        "-",
        "1x",
        "1.",
        "1e",
        "1-2",
        "nul",
        "nulls",
        "true",
        "{",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1"b":2}"#,
        r#"{"a":1,}"#,
        r#"{"a":1]"#,
        r#"{1:1}"#,
        r#""a""b""#,
        r#""a"#,
        r#""\""#,
        " 1",
    ] {
        assert_eq!(run_of(&format!("{element},")), 0, "{element}");
    }
}

#[test]
fn nothing_is_taken_near_the_end_of_a_chunk() {
    let elements = br#""abc",{"a":-1.5},12,"#;
    let whole = run(&[&elements[..], REST].concat());
    assert_eq!(whole, elements.len());
    for end in 0..elements.len() {
        assert!(run(&elements[..end]) <= end);
    }
}

/// Elements of one form, enough for several blocks, and now and then one of another form.
fn any_long_array() -> impl Strategy<Value = Vec<String>> {
    let text = || "(\\PC|[\"\\\\\n\t,:{}]){0,9}".prop_map(|text| Value::from(text).to_string());
    let number = || any::<f32>().prop_map(|value| Value::from(value).to_string());
    let odd = || {
        prop::sample::select(&["null", "{}", "-1.5", "\"\\\\\"", "{\"a\":1,\"b\":2}"][..])
            .prop_map(str::to_owned)
    };
    let texts = prop::collection::vec(prop_oneof![30 => text(), 1 => odd()], 0..60);
    let objects = (text(), number()).prop_map(|(name, value)| format!("{{{name}:{value}}}"));
    let objects = prop::collection::vec(prop_oneof![30 => objects, 1 => odd()], 0..60);
    let integers = any::<u16>().prop_map(|value| value.to_string());
    let integers = prop::collection::vec(prop_oneof![30 => integers, 1 => odd()], 0..60);
    prop_oneof![texts, objects, integers]
}

fn any_element() -> impl Strategy<Value = Value> {
    let scalar = || {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f32>().prop_map(Value::from),
            "(\\PC|[\"\\\\\n\t]){0,24}".prop_map(Value::from),
        ]
    };
    prop_oneof![
        4 => scalar(),
        2 => prop::collection::vec(("\\PC{0,6}", scalar()), 0..4)
            .prop_map(|members| Value::Object(members.into_iter().collect())),
        1 => prop::collection::vec(scalar(), 0..3).prop_map(Value::from),
    ]
}

proptest! {
    #[test]
    fn a_long_array_is_skipped_to_its_last_comma(elements in any_long_array()) {
        let text: String = elements.iter().map(|element| format!("{element},")).collect();
        prop_assert_eq!(run_of(&text), text.len(), "{}", text);
    }

    #[test]
    fn a_changed_byte_ends_the_run_or_leaves_json(
        elements in any_long_array(), position: prop::sample::Index,
        byte in prop::sample::select(br#"{}[]",:\-1.e0n "#.to_vec()),
    ) {
        let mut text = elements.iter().map(|element| format!("{element},")).collect::<String>().into_bytes();
        prop_assume!(!text.is_empty());
        let at = position.index(text.len());
        text[at] = byte;
        let length = run(&[&text[..], REST].concat()).min(text.len());
        if let Some((_comma, elements)) = text[..length].split_last() {
            let outline = outline(&[b"[", elements, b"]"].concat());
            prop_assert!(serde_json::from_str::<Value>(&outline).is_ok(), "{}", outline);
        }
    }

    #[test]
    fn the_rest_of_a_string_ends_where_it_ends_byte_by_byte(
        text in prop::collection::vec(prop::sample::select(b"aaaaaaaaaaaaaaaaaaaaaa\\\"".to_vec()), 0..400),
    ) {
        let mut at = string_rest(&text, 0);
        let found_from = |mut at: usize| {
            while at < text.len() && text[at] != b'"' {
                at += if text[at] == b'\\' { 2 } else { 1 };
            }
            at
        };
        at = found_from(at);
        prop_assert_eq!(at, found_from(0));
    }

    #[test]
    fn a_run_is_a_list_of_whole_elements(elements in prop::collection::vec(any_element(), 0..20)) {
        let texts: Vec<String> = elements.iter().map(Value::to_string).collect();
        let text = texts.iter().map(|text| format!("{text},")).collect::<String>();
        let is_skipped = |value: &Value| match value {
            Value::Bool(_) | Value::Array(_) => false,
            Value::Object(members) => !members.values().any(Value::is_boolean),
            _ => true,
        };
        let count = elements.iter().take_while(|value| is_skipped(value)).count();
        let expected: usize = texts.iter().take(count).map(|text| text.len() + 1).sum();
        prop_assert_eq!(run_of(&text), expected);
    }

    #[test]
    fn any_bytes_are_json_as_far_as_they_are_skipped(
        text in prop::collection::vec(prop::sample::select(br#"{}[]",:\-1.en0ul"#.to_vec()), 0..48),
    ) {
        let length = run(&[&text[..], REST].concat()).min(text.len());
        if let Some((_comma, elements)) = text[..length].split_last() {
            // Escapes and digits of skipped values are not checked, so only the outline is checked.
            let outline = outline(&[b"[", elements, b"]"].concat());
            prop_assert!(serde_json::from_str::<Value>(&outline).is_ok(), "{}", outline);
        }
    }
}

/// The text with `0` for every number and `""` for every string.
fn outline(text: &[u8]) -> String {
    let mut outline = String::new();
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'"' => {
                at += 1;
                while text[at] != b'"' {
                    at += if text[at] == b'\\' { 2 } else { 1 };
                }
                outline.push_str("\"\"");
            }
            b'0'..=b'9' | b'-' => {
                while matches!(text[at + 1], b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E') {
                    at += 1;
                }
                outline.push('0');
            }
            byte => outline.push(char::from(byte)),
        }
        at += 1;
    }
    outline
}
