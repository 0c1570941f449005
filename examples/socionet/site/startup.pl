# What each process of Apache has from the start: modules, and where the site's database is.
use strict;
use warnings;

use Apache::DBI ();
use CGI ();
use DBD::Pg ();
use DBI ();
use Socionet::Database ();
use Socionet::Pages ();
use Socionet::Papers ();

1;
