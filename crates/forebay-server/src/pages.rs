//! Sends the configured pages: error pages, and the page of a closed route (`maintenance`).

use std::borrow::Cow;
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use forebay_conf::{Maintenance, Page, PageKind};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::template::Escape;
use forebay_wire::http1::encode;

use crate::exchange::Exchange;
use crate::reply::FieldChanges;

/// The field that makes a browser ask for a password.
const CHALLENGE: &str = "www-authenticate";

impl Exchange {
    /// Sends the configured error page for `status`, with additional field lines. If there is no
    /// page, or if the client speaks gRPC, calls `Reply::respond_error_with`.
    pub async fn respond_error_with(&mut self, status: u16, lines: &[u8]) -> Result<(), Fault> {
        let pages = self.reply.pages();
        match pages.as_ref().and_then(|pages| pages.of(status)) {
            Some(page) if !self.reply.is_to_grpc() => {
                let sent = page.status.unwrap_or(status);
                let body = rendered(page, sent, &self.request);
                let mut lines = Cow::Borrowed(lines);
                // If the page replaces the status 401 by another status, the reply must not ask for
                // a password.
                if sent != status && sent != 401 {
                    let remove = vec![CHALLENGE.to_owned()];
                    FieldChanges { remove, ..FieldChanges::default() }
                        .remove_from(lines.to_mut(), 0);
                }
                self.reply.respond_page(sent, content_type(page), &lines, &body).await
            }
            _ => self.reply.respond_error_with(status, lines).await,
        }
    }
}

/// Returns the text of a page for this request.
fn rendered(page: &Page, status: u16, request: &Request) -> Vec<u8> {
    let escape = match page.kind {
        PageKind::Html => Escape::Html,
        PageKind::Json => Escape::Json,
        PageKind::Text => Escape::Field,
    };
    let mut body = Vec::new();
    request.fill_page(&page.text, status, escape, &mut body);
    body
}

fn content_type(page: &Page) -> &'static str {
    match page.kind {
        PageKind::Html => "text/html; charset=utf-8",
        PageKind::Json => "application/json",
        PageKind::Text => "text/plain; charset=utf-8",
    }
}

/// State of a closed route (key `maintenance`).
pub struct Closed {
    settings: Arc<Maintenance>,
    /// Time of the last check of the file `while_exists` in seconds, and true if the file existed.
    looked: Cell<(u64, bool)>,
}

impl Closed {
    /// Creates the state of a route with these settings.
    pub fn new(settings: Arc<Maintenance>) -> Self {
        Self { settings, looked: Cell::new((u64::MAX, true)) }
    }

    /// Returns true if the route is closed for the client of `request`.
    pub(crate) fn is_for(&self, request: &Request, second: u64) -> bool {
        let client = request.client.ip();
        self.is_closed(second) && !self.settings.except.iter().any(|one| one.contains(client))
    }

    fn is_closed(&self, second: u64) -> bool {
        let Some(file) = &self.settings.while_exists else { return true };
        let (looked_at, existed) = self.looked.get();
        if looked_at == second {
            return existed;
        }
        let exists = Path::new(file).exists();
        self.looked.set((second, exists));
        exists
    }

    /// Sends the maintenance page with status 503. A gRPC client gets only the corresponding gRPC
    /// status.
    pub(crate) async fn answer(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        if exchange.reply.is_to_grpc() {
            return exchange.reply.respond_error(503).await;
        }
        let page = &self.settings.page;
        let body = rendered(page, 503, &exchange.request);
        let mut lines = Vec::new();
        encode::field_number(&mut lines, "Retry-After", self.settings.retry_after.as_secs());
        exchange.reply.respond_page(503, content_type(page), &lines, &body).await
    }
}
