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
fn invalid_and_unsupported_schemas_are_refused() {
    for (schema, words) in [
        (json!({"if": true}), "\"if\""),
        (json!({"anyOf": []}), "array of schemas"),
        (json!({"items": {"$ref": "#/$defs/x"}}), "a part of the schema"),
        (json!({"$ref": "https://example.org/schema"}), "a JSON pointer into the schema"),
        (json!({"$ref": "#name"}), "a JSON pointer into the schema"),
        (json!({"$defs": 1}), "an object"),
        (json!({"multipleOf": 0}), "above 0"),
        (json!({"uniqueItems": 1}), "true or false"),
        (json!({"patternProperties": {"(": true}}), "unclosed group"),
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

#[test]
fn branches_are_combined() {
    let (small, even) = (json!({"maximum": 9}), json!({"multipleOf": 2}));
    let numbers = |values: &[i64]| -> Vec<Value> { values.iter().map(|value| json!(value)).collect() };
    check(&json!({"anyOf": [small, even]}), &numbers(&[1, 2, 12]), &numbers(&[11]));
    check(&json!({"oneOf": [small, even]}), &numbers(&[1, 12]), &numbers(&[2, 11]));
    check(&json!({"allOf": [small, even]}), &numbers(&[2]), &numbers(&[1, 12, 11]));
    check(&json!({"not": {"anyOf": [small, even]}}), &numbers(&[11]), &numbers(&[1, 2, 12]));
    check(&json!({"type": "integer", "allOf": [even]}), &numbers(&[2]), &[json!("2"), json!(1)]);
}

#[test]
fn references_name_what_is_in_the_schema() {
    let tree = json!({
        "$ref": "#/$defs/tree",
        "$defs": {
            "leaf": {"type": "integer"},
            "tree": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"items": {"$ref": "#/$defs/tree"}, "type": "array"}]},
        },
    });
    check(&tree, &[json!(1), json!([]), json!([1, [2, [3]]])], &[json!("1"), json!([1, ["2"]])]);
    let old = json!({"items": {"$ref": "#/definitions/a~1b"}, "definitions": {"a/b": {"minLength": 1}}});
    check(&old, &[json!(["x"])], &[json!([""])]);
    check(
        &json!({"properties": {"next": {"$ref": "#"}}, "required": ["x"]}),
        &[json!({"x": 1, "next": {"x": 2}})],
        &[json!({"x": 1, "next": {}})],
    );
}

#[test]
fn a_check_has_a_budget() {
    check(&json!({"$ref": "#"}), &[], &[json!(1)]);
    check(&json!({"not": {"$ref": "#"}}), &[], &[json!(1)]);
    // Every level checks the next level twice.
    let twice = json!({"not": {"anyOf": [{"items": {"$ref": "#"}, "minItems": 1}, {"items": {"$ref": "#"}, "maxItems": 1}]}});
    let schema = Schema::compile(&twice).unwrap();
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    assert!(!schema.allows(&deep), "what takes too long does not fit");
}

#[test]
fn arrays_and_objects_have_further_bounds() {
    let pair = json!({"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false});
    check(&pair, &[json!(["a", 1]), json!(["a"])], &[json!([1, 1]), json!(["a", 1, 2])]);
    let set = json!({"uniqueItems": true});
    let allowed = [json!([1, 2, "1", [1], {"a": 1}]), json!([{"a": 1}, {"a": 2}]), json!(["a,b", "a", "b"])];
    let refused =
        [json!([1, 1.0]), json!([{"a": 1, "b": 2}, {"b": 2, "a": 1}]), json!([0, -0.0]), json!([[1], [1]])];
    check(&set, &allowed, &refused);
    check(&json!({"uniqueItems": false}), &[json!([1, 1])], &[]);
    check(
        &json!({"minProperties": 1, "maxProperties": 2}),
        &[json!({"a": 1})],
        &[json!({}), json!({"a": 1, "b": 2, "c": 3})],
    );
    let named = json!({
        "properties": {"x1": {"maximum": 5}},
        "patternProperties": {"^x": {"type": "integer"}, "1$": {"minimum": 0}},
        "additionalProperties": false,
    });
    check(
        &named,
        &[json!({"x1": 3, "x2": -1})],
        &[json!({"x1": 9}), json!({"x1": -1}), json!({"x2": "a"}), json!({"y": 1})],
    );
}

#[test]
fn multiples_are_exact() {
    check(&json!({"multipleOf": 0.1}), &[json!(0.3), json!(-1.1), json!(0), json!(1e300)], &[json!(0.35)]);
    check(&json!({"multipleOf": 3}), &[json!(9007199254740993_i64)], &[json!(9007199254740992_i64)]);
    check(&json!({"multipleOf": 1e-300}), &[json!(1)], &[]);
}
