use super::{ChatTemplate, TemplateTokens, without_generation_tags, without_html_escapes};
use crate::{DataError, Message};

fn render(source: &str, unix_seconds: Option<i64>) -> Result<String, DataError> {
    let tokens = TemplateTokens { bos: "<s>".to_owned(), eos: "</s>".to_owned(), ..Default::default() };
    let template = ChatTemplate::compile("test".to_owned(), source, tokens, unix_seconds)?;
    template.render(&[
        Message { role: "system".to_owned(), content: "Be brief.".to_owned() },
        Message { role: "user".to_owned(), content: " <b>\"1\" & '2'\\n</b> ".to_owned() },
    ])
}

#[test]
fn blocks_are_trimmed_as_in_transformers() {
    let source =
        "{{ bos_token }}\n  {% for message in messages %}\n{{ message.role }};\n  {% endfor %}\nend\n";
    assert_eq!(render(source, None).unwrap(), "<s>\nsystem;\nuser;\nend");
}

#[test]
fn python_methods_and_slices_work() {
    let source = "{{ messages[-1]['content'].strip().startswith('<b>') }} {{ messages[::-1][0].role.upper() }} \
                  {%- for key, value in messages[0].items() %} {{ key }}{% break %}{% endfor %}";
    assert_eq!(render(source, None).unwrap(), "True USER role");
}

#[test]
fn absent_tools_are_none_and_false() {
    let source = "{% if tools is none and not tools and xyz is not defined %}{{ 'bare' }}{% endif %}";
    assert_eq!(render(source, None).unwrap(), "bare");
}

#[test]
fn tojson_is_that_of_python() {
    let source = "{{ messages[1].content | tojson }} {{ {'a': [1, none, true], 'ü': '<&>'} | tojson }}";
    let expected = r#"" <b>\"1\" & '2'\\n</b> " {"a": [1, null, true], "ü": "<&>"}"#;
    assert_eq!(render(source, None).unwrap(), expected);
}

#[test]
fn an_escaped_backslash_before_a_code_is_left_alone() {
    assert_eq!(without_html_escapes(r#""\u003c \\u003c \\\u003e""#), r#""< \\u003c \\>""#);
    assert_eq!(without_html_escapes(r#""no escapes""#), r#""no escapes""#);
}

#[test]
fn the_content_of_generation_blocks_is_rendered() {
    let source = "{% for message in messages %}{%- generation -%} {{ message.role }} {%- endgeneration %}|{% endfor %}";
    assert_eq!(render(source, None).unwrap(), "system|user|");
    assert_eq!(without_generation_tags("{% if generation %}{% endif %}"), "{% if generation %}{% endif %}");
}

#[test]
fn a_template_can_refuse() {
    let error = render("{{ raise_exception('only the user may speak') }}", None).unwrap_err();
    assert!(error.to_string().contains("only the user may speak"), "{error}");
}

#[test]
fn the_date_is_the_callers() {
    let source = "{{ strftime_now('%d %b %Y') }}";
    assert_eq!(render(source, Some(1_709_210_096)).unwrap(), "29 Feb 2024");
    let error = render(source, None).unwrap_err();
    assert!(error.to_string().contains("asks for the date"), "{error}");
    let error = render("{{ strftime_now('%Q!') }}", Some(0)).unwrap_err();
    assert!(error.to_string().contains("expected a format of strftime"), "{error}");
}

#[test]
fn a_broken_template_names_its_origin_and_line() {
    let error = render("{% for %}", None).unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("chat template of test: ") && message.contains(":1"), "{message}");
}
