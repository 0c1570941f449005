//! Translations of the configurations of other servers. Forebay must accept each translation.

mod support;

mod apache_never_more_open;
mod apache_nothing_lost;
mod apache_scripts;
mod caddy_never_more_open;
mod caddy_nothing_lost;
mod caddy_rewrites;
mod hostile;
mod nginx_never_more_open;
mod nginx_nothing_lost;
mod nginx_variables;
mod rules;
