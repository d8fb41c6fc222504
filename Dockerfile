# docker build --tag coterie .
# docker run --rm --user "$(id -u)" --volume "$PWD:/here" coterie run fedcaprivacy
# For the machines of a deployment: coterie deploy files.
FROM python:3.12-slim
COPY . /src
RUN pip install --no-cache-dir --constraint /src/constraints.txt '/src[tables]' && rm -r /src
WORKDIR /here
ENV HOME=/tmp
ENTRYPOINT ["coterie"]
CMD ["--help"]
