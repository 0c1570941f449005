//! The keys of `on_demand`, as the user types them.

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, Time};

/// Obtains the certificate of a host when a client first names the host. The configuration need not
/// list the hosts.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["ask"]))]
pub struct OnDemand {
    /// The http:// or https:// URL at which your application permits or refuses a host name.
    /// Forebay adds "?domain=NAME". Only the status 200 permits a certificate; redirects are not
    /// followed.
    pub ask: Option<At<String>>,
    /// A PEM file with the certificates of the authorities that issue the certificate of an
    /// https:// `ask`. Default: the authorities that this machine trusts.
    pub ca: Option<At<String>>,
    /// The largest number of certificate orders in a period, such as "100/h" or "10/m". Default:
    /// "100/h".
    pub rate: Option<At<String>>,
    /// The number of orders that may come earlier than `rate` allows. Default: 20.
    pub burst: Option<At<u32>>,
    /// The largest number of orders at the same time. Default: 4.
    pub concurrent: Option<At<usize>>,
    /// The longest wait of a handshake for its certificate. Default: "20s".
    pub wait: Option<Time>,
    /// The largest number of certificates in memory. Forebay reads others from `state` when a
    /// client names them. Default: 10000.
    pub certificates: Option<At<usize>>,
}
