use serde_json::{Value, json};

use super::{SCHEMA_DEPTH_MAX, SCHEMA_PATTERNS_MAX, Schema};

fn check(schema: &Value, allowed: &[Value], refused: &[Value]) {
    let compiled = Schema::compile(schema).unwrap();
    for value in allowed {
        assert!(compiled.allows(value), "{schema} refuses {value}");
    }
    for value in refused {
        assert!(!compiled.allows(value), "{schema} allows {value}");
    }
}

fn error(schema: &Value) -> String {
    Schema::compile(schema).err().unwrap_or_else(|| panic!("{schema} compiles")).to_string()
}

#[test]
fn types_are_told_apart() {
    check(
        &json!({"type": "integer"}),
        &[json!(1), json!(1.0), json!(-3)],
        &[json!(1.5), json!("1"), json!(null)],
    );
    check(&json!({"type": "number"}), &[json!(1), json!(1.5)], &[json!("1"), json!(true)]);
    check(&json!({"type": ["null", "boolean"]}), &[json!(null), json!(true)], &[json!(0), json!("")]);
    check(&json!({"type": "array"}), &[json!([])], &[json!({})]);
    check(&json!({"type": "object"}), &[json!({})], &[json!([])]);
}

#[test]
fn objects_have_the_properties_that_they_should() {
    let schema = json!({
        "title": "a point",
        "type": "object",
        "required": ["x"],
        "properties": {"x": {"type": "number"}, "label": {"type": "string"}},
        "additionalProperties": false,
    });
    let refused =
        [json!({}), json!({"x": "1"}), json!({"x": 1, "y": 2}), json!({"x": 1, "label": 2}), json!([])];
    check(&schema, &[json!({"x": 1}), json!({"x": 1, "label": "a"})], &refused);
    let open = json!({"properties": {"x": true}, "additionalProperties": {"type": "string"}});
    check(&open, &[json!({"x": 1, "y": "a"}), json!("no object")], &[json!({"y": 1})]);
}

#[test]
fn numbers_strings_and_arrays_have_bounds() {
    check(
        &json!({"minimum": 1, "maximum": 2}),
        &[json!(1), json!(2.0), json!("9")],
        &[json!(0.9), json!(2.1)],
    );
    check(&json!({"exclusiveMinimum": 1, "exclusiveMaximum": 2}), &[json!(1.5)], &[json!(1), json!(2)]);
    check(
        &json!({"minLength": 2, "maxLength": 3}),
        &[json!("éé"), json!("abc")],
        &[json!("é"), json!("abcd")],
    );
    check(&json!({"pattern": "^a+$"}), &[json!("aa"), json!(5)], &[json!("ab")]);
    let list = json!({"items": {"type": "integer"}, "minItems": 1, "maxItems": 2});
    check(&list, &[json!([1]), json!([1, 2])], &[json!([]), json!([1, 2, 3]), json!(["1"])]);
}

#[test]
fn members_are_equal_by_value() {
    let members = json!({"enum": [1, "a", {"x": [1, 2], "y": null}]});
    let allowed = [json!(1.0), json!("a"), json!({"y": null, "x": [1.0, 2]})];
    let refused = [
        json!(2),
        json!("b"),
        json!({"x": [1, 2]}),
        json!({"x": [2, 1], "y": null}),
        json!({"x": [1, 2], "y": null, "z": 0}),
        json!({"x": [1, 2, 3], "y": null}),
    ];
    check(&members, &allowed, &refused);
    check(&json!({"const": false}), &[json!(false)], &[json!(0), json!(null)]);
    check(&json!(false), &[], &[json!(null)]);
}

#[test]
fn what_is_not_checked_is_refused() {
    for (schema, words) in [
        (json!({"anyOf": []}), "\"anyOf\""),
        (json!({"items": {"$ref": "#"}}), "\"$ref\""),
        (json!({"type": "float"}), "float"),
        (json!({"minLength": -1}), "minLength"),
        (json!({"required": "x"}), "array of strings"),
        (json!({"pattern": "("}), "unclosed group"),
        (json!(["type"]), "expected an object"),
    ] {
        let error = error(&schema);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn schemas_are_bounded() {
    let nested = |depth| (0..depth).fold(json!(true), |inner, _| json!({"items": inner}));
    assert!(Schema::compile(&nested(SCHEMA_DEPTH_MAX)).is_ok());
    assert!(error(&nested(SCHEMA_DEPTH_MAX + 1)).contains("deeper"));
    let patterned = |count: usize| {
        let properties: serde_json::Map<String, Value> =
            (0..count).map(|index| (format!("p{index}"), json!({"pattern": "a"}))).collect();
        json!({"properties": properties})
    };
    assert!(Schema::compile(&patterned(SCHEMA_PATTERNS_MAX)).is_ok());
    assert!(error(&patterned(SCHEMA_PATTERNS_MAX + 1)).contains("patterns"));
}
