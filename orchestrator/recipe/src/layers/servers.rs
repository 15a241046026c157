//! Replaces the servers of a recipe for a simulation.

use toml::{Table, Value};

use super::{Layer, Layers, merge};
use crate::RecipeError;

/// The keys of `[fleet]` that a simulated fleet does not have.
const OF_REAL_SERVERS: [&str; 6] = ["endpoints", "servers_min", "file", "admin", "admin_token", "api_key"];
/// The longest response of a simulation, as a multiple of the mean length, if the recipe has no simulated
/// fleet. In our bench of the flagship's task the token limit is about five mean lengths.
const MEAN_LENGTHS: i64 = 5;

impl Layers {
    /// Replaces the servers of the recipe by a simulated fleet. The weakest layer has as many servers as the
    /// recipe names, so all other layers can change the fleet.
    pub(crate) fn simulate_servers(&mut self) -> Result<(), RecipeError> {
        let mut servers = 1;
        for layer in &mut self.layers {
            let Some(Value::Table(fleet)) = layer.values.get_mut("fleet") else { continue };
            if let Some(Value::Array(endpoints)) = fleet.get("endpoints") {
                servers = endpoints.len().max(1);
            }
            for key in OF_REAL_SERVERS {
                fleet.remove(key);
            }
            if let Some(Value::Table(simulated)) = fleet.get_mut("simulated") {
                simulated.remove("transport");
                simulated.remove("time_scale");
            }
        }
        let is_simulated = |layer: &Layer| {
            layer.folder.is_some()
                && layer.values.get("fleet").is_some_and(|fleet| fleet.get("simulated").is_some())
        };
        let text = if self.layers.iter().any(is_simulated) {
            "[fleet.simulated]".to_owned()
        } else {
            let mut merged = Table::new();
            self.layers.iter().for_each(|layer| merge(&mut merged, &layer.values));
            let longest = merged.get("rollout").and_then(|rollout| rollout.get("max_response_length"));
            let longest = longest.and_then(Value::as_integer).unwrap_or(MEAN_LENGTHS * 400);
            let mean = (longest / MEAN_LENGTHS).max(1);
            format!("[fleet.simulated]\nservers = {servers}\nmean_response_length = {mean}")
        };
        self.layers.insert(0, Layer::parse("the simulated fleet".to_owned(), None, text)?);
        Ok(())
    }
}
