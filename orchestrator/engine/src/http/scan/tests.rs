use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::http::text::unescape;

/// Records its calls. Skips names that begin with `skip`.
#[derive(Debug, Default, PartialEq)]
struct Recorder {
    calls: Vec<String>,
}

impl Sink for Recorder {
    type Error = ScanError;

    fn name(&mut self, raw: &[u8]) -> Result<Interest, ScanError> {
        self.calls.push(format!("name {}", String::from_utf8_lossy(raw)));
        Ok(if raw.starts_with(b"skip") { Interest::Skip } else { Interest::Read })
    }

    fn begin(&mut self, container: Container) -> Result<(), ScanError> {
        self.calls.push(format!("begin {container:?}"));
        Ok(())
    }

    fn end(&mut self) -> Result<(), ScanError> {
        self.calls.push("end".to_owned());
        Ok(())
    }

    fn string(&mut self, raw: &[u8]) -> Result<(), ScanError> {
        self.calls.push(format!("string {}", String::from_utf8_lossy(raw)));
        Ok(())
    }

    fn number(&mut self, raw: &[u8]) -> Result<(), ScanError> {
        self.calls.push(format!("number {}", String::from_utf8_lossy(raw)));
        Ok(())
    }

    fn word(&mut self, word: Word) -> Result<(), ScanError> {
        self.calls.push(format!("word {word:?}"));
        Ok(())
    }
}

fn scan<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<String>, ScanError> {
    let mut scanner = Scanner::new();
    let mut recorder = Recorder::default();
    for chunk in chunks {
        scanner.feed(chunk, &mut recorder)?;
    }
    scanner.finish()?;
    Ok(recorder.calls)
}

#[test]
fn calls_follow_the_document_without_what_is_skipped() {
    let body = br#" { "a" : [ 1, -2.5e3 , "x\"y" ] , "skip": {"a": [1, "]}", {"b": null}]}, "b":null,
        "skip2": 7, "c": {"d": true, "e": []}, "skip3": "\\"} "#;
    let calls = scan([&body[..]]).unwrap();
    let expected = [
        "begin Object",
        "name a",
        "begin Array",
        "number 1",
        "number -2.5e3",
        r#"string x\"y"#,
        "end",
        "name skip",
        "name b",
        "word Null",
        "name skip2",
        "name c",
        "begin Object",
        "name d",
        "word True",
        "name e",
        "begin Array",
        "end",
        "end",
        "name skip3",
        "end",
    ];
    assert_eq!(calls, expected);
}

#[test]
fn a_body_that_is_split_anywhere_gives_the_same_calls() {
    let body = br#"{"k\u0041y":[12,-0.5e-3,"a\\\"b\\",false,true,null,{}],"skip":{"x":"\"}]"},"s":"end\\"}"#;
    let whole = scan([&body[..]]).unwrap();
    for first in 0..=body.len() {
        for second in first..=body.len() {
            let pieces = [&body[..first], &body[first..second], &body[second..]];
            assert_eq!(scan(pieces).unwrap(), whole, "split at {first} and {second}");
        }
    }
    assert_eq!(scan(body.chunks(1)).unwrap(), whole);
}

#[test]
fn broken_structure_is_an_error_inside_skipped_values_too() {
    let cases = [
        "{]",
        "[}",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "{a:1}",
        "[1 2]",
        "[,1]",
        "{\"a\":}",
        "[tru]",
        "[nul1]",
        "{\"skip\":[1,}]}",
        "{\"skip\":{\"a\"}}",
        "{\"skip\":nope}",
        "{}{}",
        "[] 1",
        "'a'",
        "[NaN]",
        "[Infinity]",
        "{\"a\":1 \"b\":2}",
    ];
    for body in cases {
        assert!(matches!(scan([body.as_bytes()]), Err(ScanError::Unexpected { .. })), "{body}");
    }
}

#[test]
fn every_prefix_of_a_document_is_truncated() {
    let body = br#"{"a":[1,"b",{"skip":[true]}]}"#;
    for end in 0..body.len() {
        assert_eq!(scan([&body[..end]]), Err(ScanError::Truncated { at: end as u64 }));
    }
}

#[test]
fn depth_is_bounded_and_the_error_says_where() {
    let deepest = "[".repeat(DEPTH_MAX as usize) + &"]".repeat(DEPTH_MAX as usize);
    assert!(scan([deepest.as_bytes()]).is_ok());
    let deeper = format!("[{deepest}]");
    assert_eq!(scan([deeper.as_bytes()]), Err(ScanError::Deep { at: u64::from(DEPTH_MAX) }));
}

#[test]
fn depth_is_bounded_inside_skipped_arrays_too() {
    let depth = DEPTH_MAX as usize - 1;
    let document =
        |element: &str| format!("{{\"skip\":{}{element}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(scan([document("1,2,\"abcdefgh\",3").as_bytes()]).is_ok());
    let deeper = document(r#"1,{"a":"abcdefgh"},{"a":"abcdefgh"}"#);
    let found = scan([deeper.as_bytes()]);
    assert!(matches!(found, Err(ScanError::Deep { .. })), "{found:?}");
    assert_eq!(scan(deeper.as_bytes().chunks(1)), found);
}

#[test]
fn unescape_is_what_json_means() {
    assert_eq!(unescape(br"a\u00e9\n\ud83d\ude2e").as_deref(), Some("aé\n😮"));
    assert_eq!(unescape("déjà".as_bytes()).as_deref(), Some("déjà"));
    assert_eq!(unescape(br"\ud83d"), None);
    assert_eq!(unescape(b"\xff"), None);
    assert_eq!(unescape(b"a\nb"), None);
    assert_eq!(unescape(br"\x41"), None);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f32>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec(("(skip)?\\PC{0,4}", inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// The calls that a scan of this tree should make.
fn calls_of(value: &Value, calls: &mut Vec<String>) {
    // Strings arrive still escaped, and serde_json writes them as the document has them.
    let raw = |text: &Value| {
        let quoted = text.to_string();
        quoted[1..quoted.len() - 1].to_owned()
    };
    match value {
        Value::Null => calls.push("word Null".to_owned()),
        Value::Bool(true) => calls.push("word True".to_owned()),
        Value::Bool(false) => calls.push("word False".to_owned()),
        Value::Number(number) => calls.push(format!("number {number}")),
        Value::String(_) => calls.push(format!("string {}", raw(value))),
        Value::Array(elements) => {
            calls.push("begin Array".to_owned());
            elements.iter().for_each(|element| calls_of(element, calls));
            calls.push("end".to_owned());
        }
        Value::Object(members) => {
            calls.push("begin Object".to_owned());
            for (name, member) in members {
                calls.push(format!("name {}", raw(&Value::from(name.as_str()))));
                if !name.starts_with("skip") {
                    calls_of(member, calls);
                }
            }
            calls.push("end".to_owned());
        }
    }
}

proptest! {
    #[test]
    fn calls_agree_with_serde_json_for_any_document_and_split(
        document in prop::collection::vec(any_json(), 1..4),
        pretty: bool,
        chunk_bytes in 1_usize..40,
    ) {
        let value = Value::Array(document);
        let body = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let mut expected = Vec::new();
        calls_of(&value, &mut expected);
        prop_assert_eq!(scan(body.as_bytes().chunks(chunk_bytes)).unwrap(), expected);
    }

    #[test]
    fn any_bytes_end_in_calls_or_an_error_whatever_the_split(
        body in prop::collection::vec(prop::sample::select(br#"{}[]",:\ -1e.ntf0"#.to_vec()), 0..64),
        chunk_bytes in 1_usize..9,
    ) {
        prop_assert_eq!(scan(body.chunks(chunk_bytes)), scan([&body[..]]));
    }

    #[test]
    fn what_serde_json_accepts_is_accepted(body in "[\\[\\]{}\",:0-9a \\\\]{0,24}") {
        if serde_json::from_str::<Value>(&body).is_ok_and(|value| value.is_array() || value.is_object()) {
            prop_assert!(scan([body.as_bytes()]).is_ok());
        }
    }
}
