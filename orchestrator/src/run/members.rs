//! Servers that join and leave, through the admin address or the fleet's file, while the fleet is in use.
//! Servers that did not answer when the run started also join later.

use anyhow::Context;
use rolldock_listener::{Connections, RenderMetrics};
use rolldock_loadbalancer::admin::AdminConfig;
use rolldock_loadbalancer::membership::{Membership, NewMember};
use tokio_util::task::AbortOnDropHandle;

use crate::process::{say, serve_fleet};
use crate::recipe::Recipe;
use crate::scope::Scope;

/// Opens the admin address and follows the fleet's file, if the recipe asks for them. Adds the servers that
/// were `absent` at the start when they answer. The tasks end with the scope or the handles.
pub(super) async fn open(
    members: &Membership,
    absent: &[NewMember],
    recipe: &Recipe,
    metrics: Option<RenderMetrics>,
    scope: &Scope,
) -> anyhow::Result<Vec<AbortOnDropHandle<()>>> {
    let mut handles = Vec::new();
    if !absent.is_empty() {
        let (members, absent, end) = (members.clone(), absent.to_vec(), scope.token().clone());
        handles.push(scope.spawn("late servers", async move { members.admit(absent, end).await }));
    }
    if let Some(file) = recipe.fleet.file.clone() {
        let (members, end) = (members.clone(), scope.token().clone());
        handles.push(scope.spawn("fleet file", async move { members.follow(file, end).await }));
    }
    if let Some(address) = &recipe.fleet.admin {
        let address = address.parse().with_context(|| format!("fleet.admin={address}"))?;
        let token = recipe.fleet.admin_token.clone();
        let connections = Connections::new("admin", &recipe.limits.connections);
        let config = AdminConfig { token, metrics, connections };
        let (bound, serving) = serve_fleet(members.clone(), address, config, scope).await?;
        handles.push(serving);
        say(&format!("fleet's admin at http://{bound}"));
    }
    Ok(handles)
}
