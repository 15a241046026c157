//! Checks requests and answers against `openapi.json`. A proxy checks every body with the small subset of
//! JSON Schema that the document uses. A field is an error if the document does not declare it or declares
//! another type for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::response::Response;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

const TEXTUAL: &str = "application/json";

fn is_a(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        other => panic!("the document has the type {other}"),
    }
}

/// The differences between `value` and `schema`.
fn differences(document: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = document.pointer(reference.strip_prefix('#').unwrap()).unwrap();
        return differences(document, target, value, at);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let fits = |choice: &&Value| differences(document, choice, value, at).is_empty();
        let fitting = choices.iter().filter(fits).count();
        return if fitting == 1 { Vec::new() } else { vec![format!("{at}: {fitting} of the choices fit")] };
    }
    let mut found = Vec::new();
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !kinds.is_empty() && !kinds.iter().any(|kind| is_a(value, kind)) {
        return vec![format!("{at}: expected {kinds:?}, found {value}")];
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        found.push(format!("{at}: {value} is none of {allowed:?}"));
    }
    if let (Some(minimum), Some(number)) = (schema["minimum"].as_f64(), value.as_f64())
        && number < minimum
    {
        found.push(format!("{at}: {number} is below {minimum}"));
    }
    if let Some(items) = value.as_array() {
        found.extend(differences_of_items(document, schema, items, at));
    }
    if let Some(fields) = value.as_object() {
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let missing = required.filter(|name| !fields.contains_key(*name));
        found.extend(missing.map(|name| format!("{at}: {name} is missing")));
        for (name, field) in fields {
            let more = &schema["additionalProperties"];
            let within = format!("{at}.{name}");
            match schema["properties"].get(name) {
                Some(known) => found.extend(differences(document, known, field, &within)),
                None if more.is_object() => found.extend(differences(document, more, field, &within)),
                None if more == &Value::Bool(true) || schema["properties"].is_null() => {}
                None => found.push(format!("{within}: the document does not have it")),
            }
        }
    }
    found
}

fn differences_of_items(document: &Value, schema: &Value, items: &[Value], at: &str) -> Vec<String> {
    let mut found = Vec::new();
    let length = items.len() as u64;
    if schema["minItems"].as_u64().is_some_and(|least| length < least)
        || schema["maxItems"].as_u64().is_some_and(|most| length > most)
    {
        found.push(format!("{at}: {length} items"));
    }
    for (place, item) in items.iter().enumerate() {
        let known = schema["prefixItems"].get(place).or(schema.get("items"));
        if let Some(known) = known {
            found.extend(differences(document, known, item, &format!("{at}[{place}]")));
        }
    }
    found
}

/// The document, the calls that were made, and the problems that were found.
pub(crate) struct Contract {
    document: Value,
    target: String,
    client: reqwest::Client,
    /// The calls that were made, as method and path template of the document.
    pub(crate) seen: Mutex<BTreeSet<String>>,
    pub(crate) problems: Mutex<Vec<String>>,
}

impl Contract {
    /// All calls of the document.
    pub(crate) fn calls(&self) -> BTreeSet<String> {
        let paths = self.document["paths"].as_object().unwrap();
        let calls = paths.iter().flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(move |method| format!("{method} {path}"))
        });
        calls.collect()
    }

    /// The call and its operation in the document. If several path templates fit, this is the one with the
    /// fewest parameters.
    fn operation(&self, method: &Method, path: &str) -> Option<(String, &Value)> {
        let paths = self.document["paths"].as_object().unwrap();
        let fits = |template: &&String| {
            let (left, right) = (template.split('/'), path.split('/'));
            left.clone().count() == right.clone().count()
                && left.zip(right).all(|(left, right)| left.starts_with('{') || left == right)
        };
        let template = paths.keys().filter(fits).min_by_key(|template| template.matches('{').count())?;
        let method = method.as_str().to_lowercase();
        Some((format!("{method} {template}"), paths[template].get(&method)?))
    }

    fn differ(&self, call: &str, content: &Value, kind: &str, body: &[u8], what: &str) {
        let kind = kind.split(';').next().unwrap_or_default();
        let Some(schema) = content.get(kind).map(|content| &content["schema"]) else {
            self.problems.lock().push(format!("{call}: {what} of the type {kind:?}"));
            return;
        };
        if kind != TEXTUAL {
            return;
        }
        let value: Value = serde_json::from_slice(body).unwrap();
        let found = differences(&self.document, schema, &value, what);
        self.problems.lock().extend(found.into_iter().map(|difference| format!("{call}: {difference}")));
    }

    fn check_request(&self, call: &str, operation: &Value, parts: &axum::http::request::Parts, body: &[u8]) {
        let kind = parts.headers.get("content-type").map_or(TEXTUAL, |kind| kind.to_str().unwrap());
        if !body.is_empty() {
            self.differ(call, &operation["requestBody"]["content"], kind, body, "request");
        } else if operation["requestBody"]["required"] == true {
            self.problems.lock().push(format!("{call}: a request without a body"));
        }
        let query = parts.uri.query().unwrap_or_default();
        for (name, _) in url::form_urlencoded::parse(query.as_bytes()) {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let is_known = parameters.clone().any(|known| known["in"] == "query" && known["name"] == *name);
            if !is_known {
                self.problems.lock().push(format!("{call}: the query {name}"));
            }
        }
    }

    fn check_answer(&self, call: &str, operation: &Value, answer: &reqwest::Response, body: &[u8]) {
        let status = answer.status().as_u16();
        let exact = operation["responses"].get(status.to_string());
        if exact.is_none() && status < 400 {
            self.problems.lock().push(format!("{call}: status {status}"));
            return;
        }
        let response = exact.unwrap_or(&operation["responses"]["default"]);
        for name in response["headers"].as_object().into_iter().flat_map(|headers| headers.keys()) {
            if !answer.headers().contains_key(name) {
                self.problems.lock().push(format!("{call}: no header {name}"));
            }
        }
        let kind = answer.headers().get("content-type").map_or("", |kind| kind.to_str().unwrap());
        if !body.is_empty() {
            self.differ(call, &response["content"], kind, body, "answer");
        } else if response.get("content").is_some() {
            self.problems.lock().push(format!("{call}: an answer without a body"));
        }
    }
}

async fn relay(State(contract): State<Arc<Contract>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let sent = to_bytes(body, usize::MAX).await.unwrap();
    let url = format!("{}{}", contract.target, parts.uri);
    let mut forwarded = contract.client.request(parts.method.clone(), url).body(sent.clone());
    if let Some(kind) = parts.headers.get("content-type") {
        forwarded = forwarded.header("content-type", kind);
    }
    let mut answer = forwarded.send().await.unwrap();
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await.unwrap() {
        body.extend_from_slice(&piece);
    }
    match contract.operation(&parts.method, parts.uri.path()) {
        Some((call, operation)) => {
            contract.check_request(&call, operation, &parts, &sent);
            contract.check_answer(&call, operation, &answer, &body);
            contract.seen.lock().insert(call);
        }
        None => contract.problems.lock().push(format!("{} {}: no such call", parts.method, parts.uri)),
    }
    let mut response = Response::builder().status(answer.status());
    for (name, value) in answer.headers().iter().filter(|(name, _)| !is_of_the_connection(name.as_str())) {
        response = response.header(name, value);
    }
    response.body(Body::from(Bytes::from(body))).unwrap()
}

fn is_of_the_connection(name: &str) -> bool {
    ["connection", "content-length", "transfer-encoding", "date"].contains(&name)
}

/// Starts a proxy in front of the server at `target`. Returns its records, its URL and its task.
pub(crate) async fn proxy(
    target: &str,
    document: &str,
) -> (Arc<Contract>, String, AbortOnDropHandle<std::io::Result<()>>) {
    let contract = Arc::new(Contract {
        document: serde_json::from_str(document).unwrap(),
        target: target.to_owned(),
        client: reqwest::Client::new(),
        seen: Mutex::default(),
        problems: Mutex::default(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(relay).with_state(Arc::clone(&contract));
    let serving = async move { axum::serve(listener, router).await };
    (contract, url, AbortOnDropHandle::new(TaskTracker::new().spawn(serving)))
}
