use std::fs;
use std::path::Path;

use super::{Row, Schema};
use crate::Columns;
use crate::reader::for_each_row;
use crate::{DataError, Message, PromptContent};

/// Reads `lines` as the file `some.jsonl`.
fn read(lines: &str, columns: Option<&Columns>) -> Result<Vec<Row>, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("some.jsonl");
    fs::write(&file, lines).unwrap();
    read_file(&file, columns)
}

fn read_file(file: &Path, columns: Option<&Columns>) -> Result<Vec<Row>, DataError> {
    let mut rows = Vec::new();
    let mut schema: Option<Schema> = None;
    for_each_row(file, |place, json| {
        if schema.is_none() {
            schema = Some(Schema::detect(place, json, columns)?);
        }
        rows.push(schema.as_ref().unwrap().read(place, json)?);
        Ok(())
    })?;
    Ok(rows)
}

fn complaint(lines: &str) -> String {
    let message = read(lines, None).unwrap_err().to_string();
    let (_, after_folder) = message.split_once("some.jsonl").unwrap();
    after_folder.to_owned()
}

#[test]
fn a_dapo_row_is_understood() {
    let line = r#"{"data_source":"math_dapo","prompt":[{"role":"user","content":"1 + 1","name":null}],"ability":"MATH",
        "reward_model":{"ground_truth":"2","style":"rule"},"extra_info":{"index":7,"difficulty":0.25}}"#;
    let rows = read(&line.replace('\n', " "), None).unwrap();
    let message = Message { role: "user".to_owned(), content: "1 + 1".to_owned() };
    assert_eq!(rows[0].prompt, PromptContent::Messages(vec![message]));
    assert_eq!((rows[0].answer.as_str(), rows[0].source.as_str()), ("2", "math_dapo"));
    assert_eq!(rows[0].difficulty, Some(0.25));
    let fields: serde_json::Value = serde_json::from_str(&rows[0].fields).unwrap();
    let names: Vec<&String> = fields.as_object().unwrap().keys().collect();
    assert_eq!(names, ["ability", "reward_model", "extra_info"]);
}

#[test]
fn a_gsm8k_row_gives_the_number_after_the_mark() {
    let rows = read(r#"{"question":"How much?","answer":"2 #### 3\n#### 1,234 "}"#, None).unwrap();
    assert_eq!((rows[0].answer.as_str(), rows[0].source.as_str()), ("1234", "openai/gsm8k"));
    assert!(rows[0].fields.contains("#### 3"), "the whole solution stays: {}", rows[0].fields);
}

#[test]
fn a_gsm8k_row_without_the_mark_is_an_error() {
    let message =
        complaint("{\"question\":\"a\",\"answer\":\"#### 1\"}\n{\"question\":\"b\",\"answer\":\"2\"}");
    assert_eq!(message, ":2: column=answer: expected an answer after ####, found 2");
}

#[test]
fn other_rows_take_their_source_from_the_file() {
    let rows = read(r#"{"problem":"1 + 1","answer":"2"}"#, None).unwrap();
    assert_eq!(rows[0].source, "some");
    let rows = read(r#"{"problem":"1 + 1","answer":"2","unique_id":"test/1"}"#, None).unwrap();
    assert_eq!(rows[0].source, "HuggingFaceH4/MATH-500");
}

#[test]
fn named_columns_reach_into_structs() {
    let columns = Columns {
        prompt: "ask.text".to_owned(),
        answer: "a.b".to_owned(),
        source: Some("origin".to_owned()),
    };
    let rows =
        read(r#"{"ask":{"text":"1 + 1"},"a.b":2,"origin":"mine","answer":"no"}"#, Some(&columns)).unwrap();
    assert_eq!(rows[0].prompt, PromptContent::Text("1 + 1".to_owned()));
    assert_eq!((rows[0].answer.as_str(), rows[0].source.as_str()), ("2", "mine"));
    let message = read(r#"{"ask":{},"a.b":2,"origin":"mine"}"#, Some(&columns)).unwrap_err().to_string();
    assert!(message.contains("column=ask.text: expected text"), "{message}");
}

#[test]
fn numbers_keep_their_digits() {
    let line = r#"{"prompt":"a","answer":123456789012345678901234567890.50,"big":99999999999999999999999}"#;
    let rows = read(line, None).unwrap();
    assert_eq!(rows[0].answer, "123456789012345678901234567890.50");
    assert_eq!(rows[0].fields, r#"{"big":99999999999999999999999}"#);
}

#[test]
fn blank_lines_and_a_byte_order_mark_are_passed_over() {
    let rows = read(
        "\u{feff}{\"prompt\":\"a\",\"answer\":\"1\"}\r\n\r\n  \n{\"prompt\":\"b\",\"answer\":\"2\"}",
        None,
    );
    assert_eq!(rows.unwrap().len(), 2);
}

#[test]
fn bad_rows_name_their_line_and_column() {
    let good = r#"{"prompt":"a","answer":"1"}"#;
    let cases = [
        (r#"{"prompt":"a"}"#, ":2: column=answer: expected a string or a number, found nothing"),
        (
            r#"{"answer":"1"}"#,
            ":2: column=prompt: expected text, or a list of messages with role and content, found nothing",
        ),
        (r#"{"prompt":"a","answer":null}"#, ":2: column=answer: expected a string or a number, found null"),
        (r#"{"prompt":"a","answer":[1]}"#, ":2: column=answer: expected a string or a number, found [1]"),
        (
            r#"{"prompt":"a","answer":" "}"#,
            ":2: column=answer: expected a string or a number, found an empty string",
        ),
        (
            r#"{"prompt":7,"answer":"1"}"#,
            ":2: column=prompt: expected text, or a list of messages with role and content, found 7",
        ),
        (
            r#"{"prompt":" ","answer":"1"}"#,
            ":2: column=prompt: expected text, or a list of messages with role and content, found an empty prompt",
        ),
        (
            r#"{"prompt":[],"answer":"1"}"#,
            ":2: column=prompt: expected text, or a list of messages with role and content, found an empty prompt",
        ),
    ];
    for (bad, expected) in cases {
        assert_eq!(complaint(&format!("{good}\n{bad}\n")), expected);
    }
    assert!(complaint(&format!("{good}\n[1, 2]")).starts_with(":2: column=*: expected a JSON object"));
    assert!(complaint(&format!("{good}\nhello")).starts_with(":2: column=*: expected a JSON object"));
    let half_a_message = r#"{"prompt":[{"role":"user"}],"answer":"1"}"#;
    assert!(complaint(&format!("{good}\n{half_a_message}")).contains("missing field `content`"));
}

#[test]
fn an_unknown_schema_names_its_columns_and_the_way_out() {
    let message = complaint(r#"{"ask":"a","reply":"1"}"#);
    assert!(
        message.starts_with(":1: unknown schema with columns=[ask, reply]; name its columns"),
        "{message}"
    );
}

#[test]
fn bytes_that_are_no_text_are_an_error_with_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("some.jsonl");
    fs::write(&file, b"{\"prompt\":\"a\",\"answer\":\"1\"}\n{\"prompt\":\"\xff\",\"answer\":\"1\"}\n")
        .unwrap();
    let message = read_file(&file, None).unwrap_err().to_string();
    assert!(
        message.ends_with(":2: column=*: expected UTF-8, found an invalid byte after 11 bytes"),
        "{message}"
    );
}

#[test]
fn a_line_without_end_is_an_error_and_no_allocation() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("some.jsonl");
    fs::write(&file, vec![b' '; (17 << 20) as usize]).unwrap();
    let message = read_file(&file, None).unwrap_err().to_string();
    assert!(
        message.ends_with(":1: column=*: expected a line of at most 16 MiB, found a longer one"),
        "{message}"
    );
}
