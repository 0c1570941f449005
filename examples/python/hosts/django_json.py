"""A reply with JSON, with Django in one file."""
import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import path

settings.configure(
    ROOT_URLCONF=__name__, ALLOWED_HOSTS=['*'], SECRET_KEY='only for measurements',
    MIDDLEWARE=['django.middleware.security.SecurityMiddleware',
                'django.middleware.common.CommonMiddleware'])
django.setup()


def reply(request):
    name = request.GET.get('name', 'World')
    return JsonResponse({'message': 'Hello, %s' % name, 'numbers': list(range(10))})


urlpatterns = [path('json', reply)]
wsgi = get_wsgi_application()
