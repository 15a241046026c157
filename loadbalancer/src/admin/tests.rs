#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::*;
use crate::membership::{Enlist, EnlistError};
use crate::{BalancerConfig, LoadBalancer};

struct AnyServer;

impl Enlist for AnyServer {
    fn enlist<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<(), EnlistError>> {
        async { Ok(()) }.boxed()
    }

    fn dismiss(&self, _: &str) {}
}

fn members() -> Membership {
    let balancer = LoadBalancer::new(BalancerConfig::default(), Vec::new()).unwrap();
    Membership::new(balancer, Arc::new(AnyServer), 8)
}

fn with_token(token: Option<&str>) -> AdminConfig {
    AdminConfig { token: token.map(str::to_owned), ..AdminConfig::default() }
}

#[test]
fn a_missing_or_empty_token_admits_no_caller() {
    let (here, everywhere) = ("127.0.0.1:7500".parse().unwrap(), "0.0.0.0:7500".parse().unwrap());
    assert_eq!(with_token(None).check(here), Ok(()));
    assert_eq!(with_token(None).check("[::1]:7500".parse().unwrap()), Ok(()));
    assert_eq!(with_token(None).check(everywhere), Err(AdminError::Open { address: everywhere }));
    assert_eq!(with_token(Some("")).check(here), Err(AdminError::EmptyToken));
    assert_eq!(with_token(Some("secret")).check(everywhere), Ok(()));
}

#[tokio::test]
async fn an_address_that_other_machines_reach_is_not_served_without_a_token() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let refused = serve_admin(members(), with_token(None), listener, CancellationToken::new()).await;
    let words = refused.unwrap_err().to_string();
    assert!(words.contains("expected an admin token, or a loopback address"), "{words}");
}

#[tokio::test]
async fn only_the_token_opens_and_no_server_joins_without_places() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1/fleet", listener.local_addr().unwrap());
    let serving = serve_admin(members(), with_token(Some("secret")), listener, CancellationToken::new());
    let _serving = AbortOnDropHandle::new(TaskTracker::new().spawn(async move { serving.await.unwrap() }));
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for wrong in ["", "secre", "secrets"] {
        assert_eq!(client.get(&url).bearer_auth(wrong).send().await.unwrap().status(), 401, "{wrong:?}");
    }
    assert_eq!(client.get(&url).send().await.unwrap().status(), 401);
    let join = async |capacity: u32| {
        let member = json!({ "url": "http://127.0.0.1:9", "capacity": capacity });
        let answer = client.post(&url).bearer_auth("secret").json(&member).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let (status, words) = join(0).await;
    assert_eq!(status, 400);
    assert!(words.contains("expected a capacity above 0"), "{words}");
    assert_eq!(join(1).await.0, 200);
}

#[tokio::test]
async fn idle_connections_without_a_token_do_not_close_the_admin_port() {
    let limits =
        ConnectionLimits { max: Some(8), unauthenticated_max: Some(4), ..ConnectionLimits::default() };
    let connections = Connections::new("admin", &limits);
    let config = AdminConfig { connections, ..with_token(Some("secret")) };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = serve_admin(members(), config, listener, CancellationToken::new());
    let _serving = AbortOnDropHandle::new(TaskTracker::new().spawn(async move { serving.await.unwrap() }));
    let mut strangers = Vec::new();
    for _ in 0..40 {
        strangers.push(tokio::net::TcpStream::connect(address).await.unwrap());
    }
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(1)).build().unwrap();
    let asking = client.get(format!("http://{address}/v1/fleet")).bearer_auth("secret");
    assert_eq!(asking.send().await.unwrap().status(), 200);
}
