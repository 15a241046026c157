use serde_json::value::RawValue;

use super::{DataFields, Message, PromptContent, PromptUid, row_hashes, row_uid};

fn text(text: &str) -> PromptContent {
    PromptContent::Text(text.to_owned())
}

fn messages(pairs: &[(&str, &str)]) -> PromptContent {
    let message =
        |(role, content): &(&str, &str)| Message { role: (*role).to_owned(), content: (*content).to_owned() };
    PromptContent::Messages(pairs.iter().map(message).collect())
}

#[test]
fn an_identity_never_changes() {
    // Existing ledgers and checkpoints contain such ids. They are useless if the ids change.
    assert_eq!(row_uid("math", &text("1 + 1"), "2", 0).to_string(), "fb705fb53a5beaa8");
    assert_eq!(row_uid("math", &messages(&[("user", "1 + 1")]), "2", 0).to_string(), "67d9b2ac35f707ff");
}

#[test]
fn different_rows_have_different_identities() {
    let uids = [
        row_uid("math", &text("1 + 1"), "2", 0),
        row_uid("math", &text("1 + 1"), "2", 1),
        row_uid("math", &text("1 + 1"), "3", 0),
        row_uid("code", &text("1 + 1"), "2", 0),
        row_uid("math", &text("1 + "), "12", 0),
        row_uid("math", &messages(&[("user", "1 + 1")]), "2", 0),
        row_uid("math", &messages(&[("user", "1"), ("user", " + 1")]), "2", 0),
    ];
    let distinct: std::collections::BTreeSet<PromptUid> = uids.into_iter().collect();
    assert_eq!(distinct.len(), uids.len());
}

#[test]
fn a_text_and_the_message_for_which_it_stands_are_equal_prompts() {
    let of_text = row_hashes(&text("1 + 1"), "2");
    assert_eq!(of_text, row_hashes(&messages(&[("user", "1 + 1")]), "2"));
    for other in [&[("system", "1 + 1")][..], &[("user", "1"), ("user", " + 1")], &[("user", "1 + 1 ")], &[]]
    {
        assert_ne!(of_text.0, row_hashes(&messages(other), "2").0, "{other:?}");
    }
}

#[test]
fn fields_are_written_as_they_were_read() {
    let json = r#"{"big":123456789012345678901234567890,"small":0.10}"#;
    let raw: &RawValue = serde_json::from_str(json).unwrap();
    assert_eq!(serde_json::to_string(&DataFields::new(raw)).unwrap(), json);
    assert_eq!(serde_json::to_string(&DataFields::default()).unwrap(), "{}");
}
