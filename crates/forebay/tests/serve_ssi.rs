//! Server-side includes beside Apache's mod_include and nginx's SSI module: a table of pages that
//! all three evaluate. Conversations in memory test the rest: crates/forebay-gateway/tests/memory.

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer;
use support::site;

/// Documents that pages include.
const DOCUMENTS: [(&str, &str); 6] = [
    ("menu.html", "<b>menu</b>"),
    ("nested.html", "(<!--#include virtual=\"menu.html\" -->)"),
    ("sub/inner.html", "inner <!--#include file=\"leaf.html\" -->"),
    ("sub/leaf.html", "leaf"),
    ("sub/up.html", "<!--#include virtual=\"../menu.html\" -->"),
    ("two words.html", "two words"),
];

/// The servers whose answer must be the same as Forebay's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Same {
    Both,
    Apache,
    Nginx,
}
use Same::{Apache, Both, Nginx};

/// Pages, each requested with the query `a=1&b=x<y`, percent-encoded.
const PAGES: [(Same, &str); 44] = [
    (Both, "plain text <!-- comment --> & more"),
    (Both, ""),
    (Both, "a<!--#include virtual=\"/menu.html\" -->b"),
    (Both, "<!--#include virtual=\"/nested.html\" -->"),
    (Both, "<!--#include virtual=\"/sub/inner.html\" -->"),
    (Apache, "<!--#include virtual=\"/sub/up.html\" -->"),
    (Both, "<!--#include virtual='menu.html'-->"),
    (Both, "<!--#include file=\"menu.html\" -->"),
    (Both, "<!--#include file=\"sub/leaf.html\" -->"),
    (Both, "<!--#include virtual=\"two%20words.html\" -->"),
    (Both, "<!--#include file=\"two words.html\" -->"),
    (Both, "<!--#echo var=\"QUERY_STRING\" -->"),
    (Both, "<!--#echo encoding=\"none\" var=\"QUERY_STRING\" -->"),
    (Both, "<!--#echo var=\"DOCUMENT_URI\" -->"),
    (Both, "<!--#echo var=\"REMOTE_ADDR\" -->"),
    (Both, "<!--#echo var=\"HTTP_X_TEST\" -->"),
    (Both, "<!--#echo encoding=\"none\" var=\"HTTP_X_TEST\" -->"),
    (Both, "<!--#echo encoding=\"entity\" var=\"HTTP_X_TEST\" -->"),
    (Both, "<!--#echo var=\"NO_SUCH_THING\" -->"),
    (Both, "<!--#set var=\"x\" value=\"one\" --><!--#echo var=\"x\" -->"),
    (
        Both,
        "<!--#set var=\"x\" value=\"a${QUERY_STRING}b\" --><!--#echo encoding=\"none\" var=\"x\" -->",
    ),
    (
        Both,
        "<!--#set var=\"x\" value=\"one\" --><!--#if expr=\"$x = one\" -->yes<!--#else -->no<!--#endif -->",
    ),
    (Both, "<!--#if expr=\"$QUERY_STRING = /a=1/\" -->yes<!--#else -->no<!--#endif -->"),
    (Both, "<!--#if expr=\"$QUERY_STRING != /a=1/\" -->yes<!--#else -->no<!--#endif -->"),
    (
        Both,
        "<!--#if expr=\"$NO_SUCH_THING\" -->yes<!--#elif expr=\"$QUERY_STRING\" -->elif<!--#else -->no<!--#endif -->",
    ),
    (
        Both,
        "<!--#if expr=\"$QUERY_STRING\" -->a<!--#include virtual=\"menu.html\" -->b<!--#endif -->c",
    ),
    (
        Both,
        "<!--#if expr=\"$NO_SUCH_THING\" -->a<!--#include virtual=\"menu.html\" -->b<!--#endif -->c",
    ),
    (Both, "<!--#config errmsg=\"oops\" -->"),
    (Both, "<!--#config timefmt=\"%Y-%m-%d\" --><!--#echo var=\"DATE_GMT\" -->"),
    (Both, "<!--#config timefmt=\"%A %B %d\" --><!--#echo var=\"DATE_LOCAL\" -->"),
    (Both, "<!--#echo var=\"HTTP_COOKIE\" -->"),
    (Apache, "<!--#config timefmt=\"%d/%b/%y %Z\" --><!--#echo var=\"LAST_MODIFIED\" -->"),
    (Apache, "<!--#config errmsg=\"oops\" --><!--#include virtual=\"/missing\" -->"),
    (Apache, "<!--#config errmsg=\"oops\" --><!--#include file=\"../etc/passwd\" -->"),
    (Apache, "<!--#config errmsg=\"oops\" --><!--#unknown -->"),
    (
        Apache,
        "<!--#config errmsg=\"oops\" echomsg=\"nothing\" --><!--#echo var=\"NO_SUCH_THING\" -->",
    ),
    (
        Apache,
        "<!--#fsize file=\"menu.html\" -->|<!--#config sizefmt=\"bytes\" --><!--#fsize virtual=\"/menu.html\" -->",
    ),
    (Apache, "<!--#config timefmt=\"%Y\" --><!--#flastmod file=\"menu.html\" -->"),
    (
        Apache,
        "<!--#if expr=\"$QUERY_STRING && ! ($NO_SUCH_THING || $NO = x)\" -->yes<!--#endif -->",
    ),
    (Apache, "<!--#echo var=\"DOCUMENT_NAME\" -->"),
    (Apache, "<!--#echo encoding=\"url\" var=\"QUERY_STRING\" -->"),
    (Apache, "<!--#set var=\"x\" value=\"outer\" --><!--#include virtual=\"show.html\" -->"),
    (Nginx, "<!--# include virtual=\"/menu.html\" wait=\"yes\" -->"),
    (
        Nginx,
        "<!--# echo var=\"arg_a\" default=\"none\" --><!--# echo var=\"arg_z\" default=\"none\" -->",
    ),
];

#[test]
fn pages_have_the_same_text_as_with_apache_and_nginx() {
    let folder = Folder::new();
    for (name, text) in DOCUMENTS {
        folder.write(&format!("www/{name}"), text);
    }
    folder.write("www/show.html", "<!--#echo var=\"x\" -->");
    for (number, (_, page)) in PAGES.iter().enumerate() {
        folder.write(&format!("www/p{number}.html"), page);
    }
    let www = folder.path().join("www");
    let www = www.display();
    let apache = peer::apache(
        &["mime", "include"],
        &format!(
            "TypesConfig /dev/null\nAddType text/html .html\nAddOutputFilter INCLUDES .html\n\
             DocumentRoot \"{www}\"\n<Directory \"{www}\">\nOptions +Includes\nRequire all granted\n\
             SSILegacyExprParser on\n</Directory>\n"
        ),
    );
    let nginx = peer::nginx(&format!(
        "types {{ text/html html; }} server {{ listen 127.0.0.1:{{port}}; root \"{www}\"; ssi on; }}"
    ));
    let (Some(apache), Some(nginx)) = (apache, nginx) else { return };
    let forebay = site(folder, "[[site.route]]\nfiles = \"www\"\nssi = true\n");
    let request = |number: usize| {
        format!(
            "GET /p{number}.html?a=1&b=x%3Cy HTTP/1.1\r\nHost: h\r\nX-Test: <i> & \"q\" c/d\r\n\r\n"
        )
    };
    let text_of = |client: &mut Client, number: usize| {
        client.send(request(number));
        let reply = client.reply();
        assert_eq!(reply.status, 200, "page {number}");
        String::from_utf8(reply.body).unwrap()
    };
    let mut theirs =
        [Client::connect(apache.address().clone()), Client::connect(nginx.address().clone())];
    let mut ours = forebay.connect();
    let mut wrong = Vec::new();
    for (number, (same, page)) in PAGES.iter().enumerate() {
        let text = text_of(&mut ours, number);
        for (index, name) in ["Apache", "nginx"].into_iter().enumerate() {
            let is_compared = *same == Both || (*same == Apache) == (index == 0);
            if !is_compared {
                continue;
            }
            let other = text_of(&mut theirs[index], number);
            if other != text {
                wrong.push(format!("{page}\n  {name}: {other:?}\n  Forebay: {text:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), PAGES.len(), wrong.join("\n"));
}
