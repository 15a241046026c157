use super::*;

fn call(name: &str, arguments: &str) -> Call {
    Call { name: name.to_owned(), arguments: arguments.to_owned() }
}

#[test]
fn calls_are_parsed_all_or_none() {
    let whole = "see<tool_call>{\"name\": \"f\",\n\"arguments\":{\"x\":\"é\"}}</tool_call>";
    assert_eq!(parse_calls(whole), (Some("see".to_owned()), vec![call("f", "{\"x\": \"é\"}")]));
    let open_at_the_end = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}";
    assert_eq!(parse_calls(open_at_the_end), (None, vec![call("f", "{}")]));
    for content in [
        "no call",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call><tool_call>{\"na",
        "<tool_call>{\"name\": \"f\"}</tool_call>",
        "<tool_call></tool_call>",
    ] {
        assert_eq!(parse_calls(content), (Some(content.to_owned()), vec![]));
    }
}

#[test]
fn a_choice_without_tools_is_refused() {
    assert!(read_choice(Some(&json!("auto")), &[]).is_err());
    assert_eq!(read_choice(None, &[]).unwrap(), ToolChoice::None);
    let tools: Vec<Tool> = serde_json::from_value(json!([{ "function": { "name": "f" } }])).unwrap();
    assert_eq!(read_choice(None, &tools).unwrap(), ToolChoice::Auto);
    let named = json!({ "type": "function", "function": { "name": "f" } });
    assert_eq!(read_choice(Some(&named), &tools).unwrap(), ToolChoice::Named("f".to_owned()));
    assert!(read_choice(Some(&json!("sometimes")), &tools).is_err());
}

#[test]
fn only_strict_tools_need_a_grammar_in_auto() {
    let tools = |strict: Value| -> Vec<Tool> {
        serde_json::from_value(json!([{ "function": { "name": "f", "strict": strict } }])).unwrap()
    };
    assert_eq!(structural_tag(&tools(Value::Null), &ToolChoice::Auto, true), None);
    assert!(structural_tag(&tools(json!(true)), &ToolChoice::Auto, true).is_some());
    assert!(structural_tag(&tools(Value::Null), &ToolChoice::Required, true).is_some());
}
