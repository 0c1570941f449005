//! Converts a parsed `[[service]]` to a [`Service`].

use toml::Spanned;

use super::parse::{DEFAULT_READY_TIMEOUT, DEFAULT_STOP_TIMEOUT, Reader};
use super::{Problem, Service, file};

impl Reader<'_> {
    /// Validates the services: their names must be unique and usable in placeholders.
    pub(super) fn services(
        &self,
        typed: Vec<Spanned<file::Service>>,
    ) -> Result<Vec<Service>, Problem> {
        let mut services: Vec<Service> = Vec::new();
        for service in typed {
            let service = service.into_inner();
            let name = service.name.get_ref();
            let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
            if name.is_empty() || !name.bytes().all(is_plain) {
                let help = "letters, digits, - and _ make a name; {NAME.port} refers to it";
                return Err(self.at(service.name.span(), "not a service's name", help));
            }
            if services.iter().any(|other| other.name == *name) {
                let help = "give each its own name";
                return Err(self.at(service.name.span(), "a name used twice", help));
            }
            services.push(self.service(service)?);
        }
        Ok(services)
    }

    /// Checks one `[[service]]` and adds the defaults.
    fn service(&self, typed: file::Service) -> Result<Service, Problem> {
        if typed.start.get_ref().first().is_none_or(String::is_empty) {
            let help = "give its command as a list: [\"nginx\", \"-c\", \"...\"]";
            return Err(self.at(typed.start.span(), "an empty start command", help));
        }
        let listens = match typed.listens {
            Some(listens) if !listens.get_ref().contains(':') => {
                let help = "give HOST:PORT, such as \"127.0.0.1:{port}\", or \"unix:{tmp}/x.sock\"";
                return Err(self.at(listens.span(), "not an address", help));
            }
            Some(listens) => listens.into_inner(),
            None => "127.0.0.1:{port}".to_owned(),
        };
        Ok(Service {
            name: typed.name.into_inner(),
            start: typed.start.into_inner(),
            listens,
            requires: typed.requires,
            env: typed.env.into_iter().collect(),
            cwd: typed.cwd.unwrap_or_else(|| "{dir}".to_owned()),
            templates: self.templates(typed.templates)?,
            ready_timeout: self.duration(&typed.ready_timeout, DEFAULT_READY_TIMEOUT)?,
            stop_timeout: self.duration(&typed.stop_timeout, DEFAULT_STOP_TIMEOUT)?,
            cpus: self.cpus(typed.cpus)?,
        })
    }
}
