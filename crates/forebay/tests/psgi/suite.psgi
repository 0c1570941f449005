use Plack::Middleware::Lint;
use Plack::Test::Suite;
Plack::Middleware::Lint->wrap(Plack::Test::Suite->test_app_handler);
