//! Django's administration pages.

use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;

use crate::harness::{Mask, Requests, Row, Scripts, compare, row, run, text, user, writable};
use crate::support::serve;

const PYTHON: &str = "/usr/bin/python3";

const ROWS: [Row; 10] = [
    row("/cgi-bin/mill.py/admin/", 200, "Site administration"),
    row("/cgi-bin/mill.py/admin/auth/user/", 200, "user12"),
    row("/cgi-bin/mill.py/admin/auth/user/?q=user1&o=-1", 200, "user19"),
    row("/cgi-bin/mill.py/admin/auth/user/?p=1", 200, "user"),
    row("/cgi-bin/mill.py/admin/auth/user/1/change/", 200, "ann@mill.example"),
    row("/cgi-bin/mill.py/admin/auth/user/1/history/", 200, "history"),
    row("/cgi-bin/mill.py/admin/auth/group/add/", 200, "Can add log entry"),
    row("/cgi-bin/mill.py/admin/auth/user", 301, ""),
    row("/cgi-bin/mill.py/admin/auth/user/9999/change/", 302, ""),
    row("/cgi-bin/mill.py/none", 404, "Not Found"),
];

/// Each reply has another token in its form.
const MASKS: [Mask; 1] = [("csrfmiddlewaretoken\" value=\"", "\"")];

/// A project that only has the administration of its users.
const PROJECT: &str = "import os
from django.conf import settings
here = os.path.dirname(os.path.abspath(__file__))
settings.configure(
    ROOT_URLCONF=__name__, ALLOWED_HOSTS=['*'], SECRET_KEY='pond', USE_TZ=True, TIME_ZONE='UTC',
    STATIC_URL='/static/', DEFAULT_AUTO_FIELD='django.db.models.AutoField',
    DATABASES={'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': here + '/data/mill.db'}},
    INSTALLED_APPS=['django.contrib.' + name
                    for name in ('admin', 'auth', 'contenttypes', 'sessions', 'messages')],
    MIDDLEWARE=['django.contrib.sessions.middleware.SessionMiddleware',
                'django.middleware.common.CommonMiddleware',
                'django.middleware.csrf.CsrfViewMiddleware',
                'django.contrib.auth.middleware.AuthenticationMiddleware',
                'django.contrib.messages.middleware.MessageMiddleware'],
    TEMPLATES=[{'BACKEND': 'django.template.backends.django.DjangoTemplates', 'APP_DIRS': True,
                'OPTIONS': {'context_processors': [
                    'django.template.context_processors.request',
                    'django.contrib.auth.context_processors.auth',
                    'django.contrib.messages.context_processors.messages']}}])
from django.core.wsgi import get_wsgi_application
application = get_wsgi_application()
from django.contrib import admin
from django.urls import path
urlpatterns = [path('admin/', admin.site.urls)]
";

/// Makes the tables, the users, and the session of a user who is logged in.
const SET_UP: &str = "import mill
from django.core.management import call_command
call_command('migrate', verbosity=0)
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.utils import timezone
ann = User.objects.create_superuser('ann', 'ann@mill.example', 'pond')
User.objects.bulk_create(User(username='user%d' % n) for n in range(200))
Session.objects.save('millsession', {
    '_auth_user_id': str(ann.pk), '_auth_user_hash': ann.get_session_auth_hash(),
    '_auth_user_backend': 'django.contrib.auth.backends.ModelBackend',
}, timezone.now() + timezone.timedelta(days=1))
";

#[test]
fn djangos_administration_answers_as_under_cgi() {
    if !peer::has(&["python3", "python3-django"]) {
        return;
    }
    let folder = Folder::new();
    writable(&folder, "data");
    folder.write("mill.py", PROJECT);
    let set_up = folder.write("set_up.py", SET_UP);
    run(Command::new(PYTHON).arg(set_up));
    let dir = text(folder.path());
    folder.script(
        "cgi-bin/mill.py",
        format!(
            "#!{PYTHON}\nimport sys; sys.path.insert(0, '{dir}')\nfrom wsgiref.handlers import CGIHandler\n\
             import importlib.util as u\ns = u.spec_from_file_location('mill', '{dir}/mill.py')\n\
             m = sys.modules['mill'] = u.module_from_spec(s); s.loader.exec_module(m)\n\
             CGIHandler().run(m.application)\n"
        ),
    );
    let cgi_bin = format!("{dir}/cgi-bin");
    let Some(model) = (Scripts { dir: &cgi_bin, env: &[] }).plain_cgi() else { return };
    let forebay = serve(
        Folder::new(),
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/cgi-bin/mill.py/*\"\n\
             app = \"mill\"\n[app.mill]\nkind = \"wsgi\"\ndir = \"{dir}\"\npython = \"{PYTHON}\"\n\
             module = \"mill:application\"\nworkers = 4\n{}",
            user()
        ),
    );
    let fields = "Cookie: sessionid=millsession\r\n".to_owned();
    let requests = Requests { rows: &ROWS, fields, masks: &MASKS, ..Requests::default() };
    compare("wsgi", &requests, model.address(), forebay);
}
