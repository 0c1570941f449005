# A Django project for serve_asgi.rs.
import asyncio
import os

from django.conf import settings

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=['*'], SECRET_KEY='pond',
                   MIDDLEWARE=['django.middleware.common.CommonMiddleware'])

from django.core.asgi import get_asgi_application
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path, reverse


async def about(request):
    await asyncio.sleep(0.001)
    return HttpResponse('%s %s %s %s' % (request.build_absolute_uri(), request.path_info,
                                         reverse('upload'), request.META['REMOTE_ADDR']))


def upload(request):
    """A view of the old kind, which runs in a thread."""
    file = request.FILES.get('file')
    return HttpResponse('%d bytes, file %s' % (len(request.body) if file is None else file.size, file))


def stream(request):
    return StreamingHttpResponse(b'%d\n' % number for number in range(1000))


urlpatterns = [path('about', about), path('upload', upload, name='upload'), path('stream', stream)]
application = get_asgi_application()
