//! Countries and autonomous systems of addresses, from databases in the MMDB format (MaxMind,
//! DB-IP and others).

use std::fmt;
use std::net::IpAddr;

use maxminddb::{PathElement, Reader};

/// Databases, which are asked in turn.
pub struct Geo(Vec<(String, Reader<Vec<u8>>)>);

impl Geo {
    /// Opens databases, each with its name for messages. Returns the position and the reason of the
    /// first one that cannot be used. Checks all of each database, so that a later lookup cannot
    /// fail.
    pub(crate) fn open(databases: Vec<(String, Vec<u8>)>) -> Result<Self, (usize, String)> {
        let open = |(at, (name, bytes)): (usize, (String, Vec<u8>))| {
            let reader = Reader::from_source(bytes).map_err(|error| (at, error.to_string()))?;
            reader.verify().map_err(|error| (at, error.to_string()))?;
            Ok((name, reader))
        };
        databases.into_iter().enumerate().map(open).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the country of an address: two capital letters (ISO 3166).
    pub fn country(&self, address: IpAddr) -> Option<[u8; 2]> {
        const PATHS: [&[PathElement<'_>]; 2] = [
            &[PathElement::Key("country"), PathElement::Key("iso_code")],
            &[PathElement::Key("country_code")],
        ];
        let code: &str = self.find(address, &PATHS)?;
        code.as_bytes().try_into().ok()
    }

    /// Returns the number of the autonomous system of an address.
    pub fn asn(&self, address: IpAddr) -> Option<u32> {
        self.find(address, &[&[PathElement::Key("autonomous_system_number")]])
    }

    fn find<'d, T: serde::Deserialize<'d>>(
        &'d self,
        address: IpAddr,
        paths: &[&[PathElement<'_>]],
    ) -> Option<T> {
        let address = address.to_canonical();
        self.0.iter().find_map(|(_, reader)| {
            let found = reader.lookup(address).ok()?;
            paths.iter().find_map(|path| found.decode_path(path).ok().flatten())
        })
    }
}

impl PartialEq for Geo {
    fn eq(&self, other: &Self) -> bool {
        let built = |(name, reader): &(String, Reader<Vec<u8>>)| {
            let metadata = reader.metadata();
            (name.clone(), metadata.build_epoch, metadata.node_count)
        };
        self.0.iter().map(built).eq(other.0.iter().map(built))
    }
}

impl Eq for Geo {}

impl fmt::Debug for Geo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}
