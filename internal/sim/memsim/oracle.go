package memsim

type oracleForecasts struct{}
