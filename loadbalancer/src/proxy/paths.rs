//! Decides by method and path which requests are passed on.
//!
//! Engines have many calls that are not for clients, and every version adds more. Such calls stop an engine,
//! change its weights or run code in its workers, mostly without a key. Operators make them through other
//! ports. This module therefore lists the calls that are allowed.

use hyper::Method;

/// Who answers a request, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// The proxy reports its health.
    Health,
    /// The proxy reports its metrics.
    Metrics,
    /// The proxy sends an abort to every server that is not dead.
    Abort,
    /// Any server answers, without a permit: the call generates nothing, and all servers answer alike.
    AnyServer,
    /// The server that a permit names answers.
    Permit,
    /// The proxy refuses the call: clients may not make it.
    Refused,
    /// The proxy answers "not found": a client cannot read this path.
    Unknown,
}

/// Paths that are passed on, in addition to the paths below `/v1/` and the rendering calls. Some of these
/// paths return rewards or embeddings.
const PASSED: [&str; 10] = [
    "/inference/v1/generate",
    "/tokenize",
    "/detokenize",
    "/version",
    "/pooling",
    "/classify",
    "/score",
    "/rerank",
    "/v2/rerank",
    "/v2/embed",
];
const ABORTS: [&str; 2] = ["/abort_requests", "/inference/v1/abort_requests"];
/// Paths below `/v1/` that change an engine.
const CONTROL: [&str; 2] = ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"];

pub(super) fn route(method: &Method, path: &str) -> Route {
    let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    match path {
        "/health" | "/ping" if reads => Route::Health,
        "/metrics" if reads => Route::Metrics,
        path if ABORTS.contains(&path) && *method == Method::POST => Route::Abort,
        path if !is_passed(path) => {
            if reads {
                Route::Unknown
            } else {
                Route::Refused
            }
        }
        path if reads || generates_nothing(path) => Route::AnyServer,
        _ => Route::Permit,
    }
}

fn is_passed(path: &str) -> bool {
    // A gateway between the proxy and an engine may resolve dots. The engine would then see another path.
    let is_plain = !path.contains("..") && !path.contains("%2e") && !path.contains("%2E");
    let is_clients = path.starts_with("/v1/") && !CONTROL.contains(&path.trim_end_matches('/'));
    is_plain && (is_clients || PASSED.contains(&path) || renders(path))
}

fn renders(path: &str) -> bool {
    path.ends_with("/render") || path.ends_with("/derender")
}

/// Whether a call takes no place on an engine. Its outcome does not show whether the engine can generate.
fn generates_nothing(path: &str) -> bool {
    matches!(path, "/tokenize" | "/detokenize") || renders(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_clients_are_forwarded_and_calls_of_operators_are_not() {
        for path in ["/v1/completions", "/v1/chat/completions", "/inference/v1/generate", "/v1/embeddings"] {
            assert_eq!(route(&Method::POST, path), Route::Permit, "{path}");
        }
        for path in ["/tokenize", "/detokenize", "/v1/chat/completions/render", "/inference/v1/derender"] {
            assert_eq!(route(&Method::POST, path), Route::AnyServer, "{path}");
        }
        for path in ["/v1/models", "/version", "/v1/completions"] {
            assert_eq!(route(&Method::GET, path), Route::AnyServer, "{path}");
        }
        for path in ["/abort_requests", "/inference/v1/abort_requests"] {
            assert_eq!(route(&Method::POST, path), Route::Abort, "{path}");
        }
        assert_eq!(route(&Method::GET, "/ping"), Route::Health);
        for path in [
            "/pause",
            "/resume",
            "/sleep",
            "/wake_up",
            "/collective_rpc",
            "/update_weights",
            "/init_weight_transfer_engine",
            "/reset_prefix_cache",
            "/scale_elastic_ep",
            "/v1/load_lora_adapter",
            "/v1/unload_lora_adapter/",
            "/v1/../pause",
            "/v1/%2e%2e/pause",
            "/health",
            "/",
            "//v1/completions",
        ] {
            for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
                assert_eq!(route(&method, path), Route::Refused, "{method} {path}");
            }
        }
        for path in ["/nope", "/server_info", "/is_paused", "/load", "/abort_requests"] {
            assert_eq!(route(&Method::GET, path), Route::Unknown, "{path}");
        }
    }
}
