#!/usr/bin/perl
use CGI qw(:standard);
print header("text/html"), "hello ", param("n"), "
";
